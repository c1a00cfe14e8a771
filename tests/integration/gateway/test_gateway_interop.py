"""Interoperability with an unmodified tritonclient, in its own process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai.v1 import common_pb2, hub_pb2
from tests.integration.gateway.conftest import Caller, NewAgent, config_in

FOLDER = Path(__file__).parent


@pytest.fixture
def config(tmp_path: Path) -> GatewaySettings:
    # So that a busy machine does not lose the worker while the script starts.
    return config_in(tmp_path, heartbeat_s=20.0)


@pytest.mark.parametrize(
    ("script", "port"),
    [("triton_script.py", "address"), ("triton_http_script.py", "http_address")],
)
async def test_unmodified_tritonclient_works_with_the_gateway(
    gateway: Gateway, caller: Caller, new_agent: NewAgent, script: str, port: str
) -> None:
    agent = new_agent("w1")
    held = common_pb2.Engine()
    held.CopyFrom(agent.register.engines[0])
    held.name = "held"
    agent.register.engines.append(held)

    async def answer(assignment: hub_pb2.Assignment) -> None:
        await (agent.hold if assignment.engine == "held" else agent.complete)(assignment)

    agent.answer = answer
    async with agent:
        await caller.workers(1)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(FOLDER / script),
            getattr(gateway, port),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        of_held = {a.id for a in agent.assignments if a.engine == "held"}
        await agent.until(lambda: agent.stops == of_held)
    assert of_held
