"""Admission and settings of a gateway."""

import asyncio
import math
from pathlib import Path

import pytest

from gateway.admission.admission import Admission
from gateway.gateway_settings import GatewaySettings
from synergai.errors import InvalidInput, Overloaded
from synergai.runtime.clock import Clock
from synergai.runtime.reexec import decode_config, encode_config

# --- admission --------------------------------------------------------------------------------


async def test_admission_limits_requests_and_bytes_but_admits_one_large_request() -> None:
    admission = Admission(2, 10, Clock())
    admission.acquire(100)
    with pytest.raises(Overloaded, match="bytes"):
        admission.acquire(1)
    admission.release(100)
    admission.acquire(5)
    admission.acquire(5)
    with pytest.raises(Overloaded, match="requests"):
        admission.acquire(0)


async def test_admission_is_idle_without_requests() -> None:
    admission = Admission(2, 10, Clock())
    admission.acquire(1)
    waiting = asyncio.create_task(admission.wait_idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    admission.release(1)
    await waiting


# --- settings ---------------------------------------------------------------------------------


def test_settings_come_from_environment_and_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SYNERGAI_GATEWAY_POLICY", "fifo")
    monkeypatch.setenv("SYNERGAI_GATEWAY_STATE", str(tmp_path))
    config = GatewaySettings.load({"infeasible": "reject"})
    assert (config.scheduling.policy, config.scheduling.infeasible) == ("fifo", "reject")
    assert config.state == tmp_path


def test_settings_survive_the_command_line(tmp_path: Path) -> None:
    values = {"state": str(tmp_path), "fair_burst_s": "inf", "policy_options": "a=b"}
    settings = GatewaySettings.load(values)
    assert settings.scheduling.fair_burst_s == math.inf
    assert settings.scheduling.policy_options == {"a": "b"}
    assert decode_config(encode_config(settings), GatewaySettings) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("listen", "nowhere"), ("heartbeat_s", "-1"), ("max_jobs", "0"), ("log_level", "loud")],
)
def test_invalid_setting_is_rejected(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=name.replace("_", "-")):
        GatewaySettings.load({name: value})
