"""Request streams of the agent's own server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import pytest

from synergai.errors import Cancelled, EngineNotFound
from synergai.oip import inference_pb2 as oip
from synergai.protocol.oip_stream import cancel_request
from synergai.protocol.request_codec import parse_header
from synergai.protocol.rpc import Malformed, RawRequest, serialise
from worker_agent.standalone.stream import RequestStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from worker_agent.runner.runner import Runner
    from worker_agent.runner.work_item import WorkItem
    from worker_agent.standalone.stream import PendingRequest


class FakeRunner:
    """Its work items are futures that the test completes."""

    def __init__(self) -> None:
        self.work: list[asyncio.Future[bytes]] = []
        self.abandoned: list[Any] = []

    def begin(self, raw: RawRequest[Any]) -> PendingRequest:
        if raw.parsed.message.model_name == "nothing":
            raise EngineNotFound("nothing")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.work.append(future)
        return cast("WorkItem", future), future

    def stop(self, work: asyncio.Future[bytes]) -> None:
        if not work.done():
            work.set_exception(Cancelled("the request was cancelled"))

    def abandon(self, work: asyncio.Future[bytes]) -> None:
        self.abandoned.append(work)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


def request(request_id: str, engine: str = "echo") -> oip.ModelInferRequest:
    return oip.ModelInferRequest(id=request_id, model_name=engine)


async def arriving(
    messages: Iterable[oip.ModelInferRequest],
) -> AsyncIterator[RawRequest[Any] | Malformed]:
    for message in messages:
        data = message.SerializeToString()
        yield RawRequest(data, parse_header(data))


async def answered(runner: FakeRunner, *messages: oip.ModelInferRequest) -> list[tuple[str, str]]:
    """Return id and status of each response; the status is empty on success."""
    stream = RequestStream(runner.begin, cast("Runner", runner))
    found = []
    async with aclosing(stream.responses(arriving(messages))) as responses:
        async for answer in responses:
            message = oip.ModelStreamInferResponse.FromString(serialise(answer))
            response = message.infer_response
            found.append((response.id, response.parameters["status"].string_param))
    return found


async def test_failed_request_keeps_its_id(runner: FakeRunner) -> None:
    assert await answered(runner, request("a", "nothing")) == [("a", "NOT_FOUND")]


async def test_cancelled_request_stops_and_is_answered_as_cancelled(runner: FakeRunner) -> None:
    assert await answered(runner, request("a"), cancel_request("a")) == [("a", "CANCELLED")]


async def test_cancelling_an_unknown_request_is_a_no_op(runner: FakeRunner) -> None:
    messages = [cancel_request("a"), request("a", "nothing"), cancel_request("a")]
    assert await answered(runner, *messages) == [("a", "NOT_FOUND")]


async def test_closed_stream_abandons_requests_in_flight(runner: FakeRunner) -> None:
    reading = asyncio.create_task(answered(runner, request("a"), request("b")))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(runner.work) == 2
    reading.cancel()
    await asyncio.wait([reading])
    assert set(runner.abandoned) == set(runner.work)
