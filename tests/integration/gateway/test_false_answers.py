"""A worker that answers falsely: found, ejected, shown, and readmitted by an operator only."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING
from urllib.request import urlopen

from gateway.fleet.distrust import readmit
from gateway.server import Gateway
from synergai.oip import inference_pb2 as oip
from synergai.v1 import common_pb2, fleet_pb2, hub_pb2
from tests.integration.gateway.conftest import ECHO, Caller, FakeAgent, config_in, echoed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.message_fields import RequestFactory


def worker(gateway: Gateway, name: str) -> FakeAgent:
    agent = FakeAgent(gateway.hub_address, name)
    configuration = common_pb2.Configuration(threads=1)
    agent.register.sessions.add(engine=ECHO, configuration=configuration)
    return agent


def liar(gateway: Gateway, name: str) -> FakeAgent:
    agent = worker(gateway, name)

    async def lie(assignment: hub_pb2.Assignment) -> None:
        responses = []
        for request in assignment.requests:
            response = oip.ModelInferResponse.FromString(echoed(request))
            response.raw_output_contents[0] = b"\0\0\x80\x40"
            responses.append(response.SerializeToString())
        await agent.end(assignment, done=assignment.count, responses=responses)

    agent.answer = lie
    return agent


async def shown(
    caller: Caller, name: str, condition: Callable[[fleet_pb2.Worker], bool]
) -> fleet_pb2.Worker:
    """Wait until a worker is shown as expected."""
    async with asyncio.timeout(30):
        while True:
            response = await caller.fleet.ListWorkers(fleet_pb2.ListWorkersRequest())
            for each in response.workers:
                if each.id == name and condition(each):
                    return each
            await asyncio.sleep(0.05)


def is_ejected(each: fleet_pb2.Worker) -> bool:
    return each.state == fleet_pb2.WORKER_STATE_EJECTED


async def test_worker_that_answers_falsely_is_ejected_until_it_is_readmitted(
    tmp_path: Path, a_request: RequestFactory
) -> None:
    audit = tmp_path / "audit.log"
    config = config_in(tmp_path, verify_share="100%", audit_log=audit, heartbeat_s=10.0)
    true = a_request().raw_input_contents[0]
    async with Gateway(config) as gateway:
        caller = Caller(gateway.address)
        async with caller.channel, worker(gateway, "w1"), worker(gateway, "w2"):
            await caller.profile()
            await caller.workers(2)
            async with liar(gateway, "w3") as rogue:
                await caller.workers(3)
                async with asyncio.timeout(30):
                    while not gateway.app.verifier or not gateway.app.verifier.ejections:
                        await caller.oip.ModelInfer(a_request(), timeout=30)
                found = await shown(caller, "w3", is_ejected)
                assert "it answered falsely: " in found.suspicion
                assert found.engines[0].fault == "the worker is ejected, as it answered falsely"
                assert (await caller.oip.ModelMetadata(oip.ModelMetadataRequest(name=ECHO))).name
                lied = len(rogue.assignments)
                for _ in range(5):
                    answer = await caller.oip.ModelInfer(a_request(), timeout=30)
                    assert answer.raw_output_contents[0] == true
                assert len(rogue.assignments) == lied
                health = await asyncio.to_thread(read, f"http://{gateway.http_address}/healthz")
                assert health == "serving\nejected workers, which answered falsely: 1\n"
            # Neither a new connection nor time readmits it.
            await caller.workers(2)
            async with liar(gateway, "w3") as rogue:
                await shown(caller, "w3", is_ejected)
                await caller.oip.ModelInfer(a_request(), timeout=30)
                assert not rogue.assignments
    async with Gateway(config) as gateway:
        caller = Caller(gateway.address)
        async with caller.channel, worker(gateway, "w3") as repaired:
            assert is_ejected(await shown(caller, "w3", lambda _: True))
            readmit(config.state, "w3")
            await shown(caller, "w3", lambda each: not is_ejected(each) and not each.suspicion)
            await caller.oip.ModelInfer(a_request(), timeout=30)
            assert repaired.assignments
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    changes = [(line["call"], line["object"]) for line in lines if line["caller"] == "gateway"]
    assert changes == [("eject", "w3"), ("readmit", "w3")]


def read(url: str) -> str:
    with urlopen(url, timeout=30) as response:
        return str(response.read().decode())
