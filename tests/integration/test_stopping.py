"""Signals to the gateway while clients send requests as fast as they can."""

import asyncio
import collections
import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from demo.local_fleet import LocalFleet
from synergai.domain import EngineName
from synergai.oip import inference_pb2 as oip
from tests.calls import raw_unary
from tests.emulated_engines import write_emulated_engines
from tests.http1 import text_of
from tests.waiting import until

ENGINE = EngineName("slow")
QUERY_S = 0.005
CLIENTS = 4
IN_FLIGHT = 64
INFER = "/inference.GRPCInferenceService/ModelInfer"
REFUSALS = (
    "the gateway is stopping",
    "failed to connect to all addresses",
)
"""Beginnings of the messages to calls that the gateway has not accepted."""


class Load:
    """Clients that send their next request as soon as one has ended."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(address, options) for _ in range(CLIENTS)]
        request = oip.ModelInferRequest(model_name=ENGINE, raw_input_contents=[bytes(4)])
        request.inputs.add(name="x", datatype="FP32", shape=[1])
        self._request = request.SerializeToString()
        self.answered = 0
        self.failures = collections.Counter[tuple[grpc.StatusCode, str]]()

    async def run(self) -> None:
        channels = self._channels * (IN_FLIGHT // CLIENTS)
        await asyncio.gather(*(self._send(each) for each in channels))
        for channel in self._channels:
            await channel.close()

    async def _send(self, channel: grpc.aio.Channel) -> None:
        call = raw_unary(channel, INFER)
        message = ""
        while "Connection refused" not in message:
            try:
                await call(self._request, timeout=30)
                self.answered += 1
            except grpc.aio.AioRpcError as error:
                message = error.details() or ""
                self.failures[error.code(), message] += 1
                await asyncio.sleep(0)


@contextlib.contextmanager
def running_fleet(folder: Path, command: str) -> Iterator[LocalFleet]:
    models, _ = write_emulated_engines(folder, {ENGINE: QUERY_S})
    with LocalFleet(folder / "fleet") as fleet:
        if command == "serve":
            fleet.start_gateway(["--threads", "1"], models=models)
        else:
            fleet.start_gateway()
            fleet.start_agent("local", models=models, options=["--threads", "1"])
        fleet.wait_for_workers(1)
        yield fleet


def requests_of(fleet: LocalFleet) -> tuple[int, int]:
    """Return how many requests the gateway has answered, and how many are in flight."""
    text = text_of(fleet.http_address, "/metrics")
    [answered] = re.findall(r'^synergai_requests_total{.*outcome="ok"} (\d+)', text, re.MULTILINE)
    [in_flight] = re.findall(r"^synergai_requests_in_flight (\d+)", text, re.MULTILINE)
    return int(answered), int(in_flight)


@pytest.mark.parametrize("command", ["gateway", "serve"])
async def test_calls_in_flight_are_answered_and_later_ones_can_be_retried(
    tmp_path: Path, command: str
) -> None:
    with running_fleet(tmp_path, command) as fleet:
        load = Load(fleet.address)
        running = asyncio.create_task(load.run())
        await until(lambda: load.answered >= IN_FLIGHT, 0.01)
        answered = in_flight = 0
        while in_flight < IN_FLIGHT // 2:
            answered, in_flight = await asyncio.to_thread(requests_of, fleet)
        assert fleet.gateway is not None
        fleet.gateway.send_signal(signal.SIGTERM)
        await asyncio.wait_for(running, 30)
        assert fleet.gateway.wait(60) == 0
    assert load.answered >= answered + in_flight
    unexpected = [
        failure
        for failure in load.failures
        if failure[0] is not grpc.StatusCode.UNAVAILABLE or not failure[1].startswith(REFUSALS)
    ]
    assert not unexpected, load.failures


async def test_calls_to_a_killed_gateway_can_be_retried(tmp_path: Path) -> None:
    with running_fleet(tmp_path, "gateway") as fleet:
        load = Load(fleet.address)
        running = asyncio.create_task(load.run())
        await until(lambda: load.answered >= IN_FLIGHT, 0.01)
        fleet.kill("gateway")
        await asyncio.wait_for(running, 30)
    assert load.answered
    assert {code for code, _ in load.failures} == {grpc.StatusCode.UNAVAILABLE}
