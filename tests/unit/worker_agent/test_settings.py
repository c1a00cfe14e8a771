import os
from collections.abc import Callable
from pathlib import Path

import pytest

from synergai.domain import Configuration, EngineName, Session, largest_configuration
from synergai.errors import InvalidInput, InvalidSettings
from synergai.names import validate_name
from synergai.runtime.settings import decode_config, encode_config
from worker_agent.agent_settings import AgentSettings, WorkerSettings
from worker_agent.power.controller import PowerMode


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr("os.sysconf", configured_cores(6))


def configured_cores(number: int) -> Callable[[str | int], int]:
    """Return an ``os.sysconf`` that reports this number of configured cores."""
    sysconf = os.sysconf
    return lambda name: number if name == "SC_NPROCESSORS_CONF" else sysconf(name)


def test_thread_counts_are_limited_by_the_given_cores() -> None:
    kept = AgentSettings.load({"cores": "2-4"})
    assert kept.worker.configurations() == (
        Configuration(1),
        Configuration(2),
        Configuration(3),
    )
    with pytest.raises(InvalidInput, match="an engine with 4 threads needs 4 cores, not 3"):
        AgentSettings.load({"cores": "2-4", "threads": "1,4"}).worker.configurations()


def test_configurations_are_ordered_by_the_speed_of_their_mode() -> None:
    modes = [
        PowerMode(name="MAXN", cores=6),
        PowerMode(name="MODE_30W_ALL", cores=6, max_mhz=1200.0),
        PowerMode(name="SMALL", cores=2, max_mhz=2100.0),
    ]
    found = AgentSettings().worker.configurations(modes)
    assert list(dict.fromkeys(each.power_mode for each in found)) == [
        "SMALL",
        "MODE_30W_ALL",
        "MAXN",
    ]
    assert largest_configuration(found) == Configuration(6, "MAXN")


def test_modes_of_the_same_speed_are_offered_in_the_order_given() -> None:
    modes = [PowerMode(name=name, cores=2) for name in ("fast", "slow")]
    found = WorkerSettings(threads=(2,)).configurations(modes)
    assert [each.power_mode for each in found] == ["fast", "slow"]


def test_configurations_of_providers_come_before_those_of_the_cpu_if_that_is_wanted() -> None:
    on_cpu = Configuration(1), Configuration(2)
    on_cuda = Configuration(0, "", "CUDA")
    for names, found in (
        ("CPU", on_cpu),
        ("CPU,CUDA", (on_cuda, *on_cpu)),
        ("CUDA", (on_cuda,)),
        ("XNNPACK", (Configuration(1, "", "XNNPACK"), Configuration(2, "", "XNNPACK"))),
    ):
        settings = AgentSettings.load({"threads": "1,2", "providers": names})
        assert settings.worker.configurations() == found


@pytest.mark.parametrize("threads", ["0", "-1", "1,5000", "two"])
def test_impossible_number_of_threads_is_refused(threads: str) -> None:
    with pytest.raises(InvalidSettings, match="--threads"):
        AgentSettings.load({"threads": threads})


def test_pinned_sessions_are_an_engine_and_its_configuration() -> None:
    settings = AgentSettings.load({"pin": "digits=threads=2,mobilenet=mode=MAXN"})
    assert settings.worker.sessions == (
        Session(EngineName("digits"), Configuration(2)),
        Session(EngineName("mobilenet"), Configuration(power_mode="MAXN")),
    )


def test_pin_of_no_configuration_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="--pin"):
        AgentSettings.load({"pin": "digits=fast"})


@pytest.mark.parametrize("hostname", ["ä-host", "-x", "", "a" * 200])
def test_any_hostname_gives_a_valid_worker_id(
    monkeypatch: pytest.MonkeyPatch, hostname: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: hostname)
    assert validate_name(WorkerSettings().worker_id, "worker id")


def test_worker_id_that_could_leave_a_directory_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="--worker-id"):
        AgentSettings.load({"worker_id": "../x"})


def test_settings_survive_the_command_line(tmp_path: Path) -> None:
    values = {"models": str(tmp_path), "pin": "digits=threads=2", "cores": "1-3", "tls_ca": "a"}
    settings = AgentSettings.load(values)
    worker = settings.worker
    assert (worker.models, worker.cores, settings.tls_ca) == (tmp_path, (1, 2, 3), Path("a"))
    assert decode_config(encode_config(settings), AgentSettings) == settings


def test_memory_defaults_to_half_of_the_machine() -> None:
    assert WorkerSettings(memory_mb=3).memory_bytes == 3_000_000
    assert WorkerSettings().memory_bytes > 64 << 20


def test_libraries_of_operators_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ops.so").touch()
    kept = AgentSettings.load({"onnx_operators": "ops.so"})
    assert kept.worker.onnx_operators == (str(tmp_path / "ops.so"),)
    with pytest.raises(InvalidSettings, match=r"--onnx-operators: the library 'no\.so' does not"):
        AgentSettings.load({"onnx_operators": "ops.so,no.so"})
