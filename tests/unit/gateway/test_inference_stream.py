"""A stream of inference requests, with responses in order of completion."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from gateway.calls.requests.inference import Request
from gateway.calls.requests.parameters import MAX_WINDOW, STREAM_WINDOW, window_from_metadata
from gateway.calls.servicers.inference_stream import MAX_UNREAD_BYTES, InferenceStream
from synergai.errors import EngineNotFound, InvalidInput
from synergai.oip import inference_pb2 as oip
from synergai.wire.memory_bounds import COUNTED_BYTES, UnreadResponses
from synergai.wire.parameters import WINDOW_METADATA
from synergai.wire.request_codec import RequestHeader
from synergai.wire.rpc import Malformed, RawRequest
from tests.message_fields import cancel_request
from tests.unit.gateway.conftest import GatewayHarness, raw_request
from tests.waiting import turns


class FakeRequest:
    """Request that the test completes."""

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.result: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def abandon(self) -> None:
        self.result.cancel()

    def complete(self, size: int = 0) -> None:
        response = oip.ModelInferResponse(id=self.id, raw_output_contents=[bytes(size)])
        self.result.set_result(response.SerializeToString())


class FakeCalls:
    """Calls that start requests and never complete them.

    It has no engine ``nothing``, and the quota for ``flooded`` is used up.
    """

    def __init__(self) -> None:
        self.requests: list[FakeRequest] = []

    def begin(
        self,
        raw: RawRequest[RequestHeader],
        _budget_s: float | None,
        _tenant: str,
    ) -> FakeRequest:
        if raw.parsed.message.model_name == "nothing":
            raise EngineNotFound("nothing")
        self.requests.append(FakeRequest(raw.parsed.message.id))
        return self.requests[-1]


def requests(*ids: str) -> list[oip.ModelInferRequest]:
    return [oip.ModelInferRequest(id=each) for each in ids]


class Streaming:
    """A stream under test, with its calls."""

    def __init__(self, window: int, unread: UnreadResponses | None = None) -> None:
        self.calls = FakeCalls()
        self.stream = InferenceStream(
            cast("Any", self.calls.begin),
            None,
            "",
            window=window,
            end_on_error=False,
            unread=UnreadResponses() if unread is None else unread,
            on_disconnected=lambda _: None,
        )

    @asynccontextmanager
    async def reading(self, messages: Iterable[oip.ModelInferRequest]) -> AsyncIterator[None]:
        async def arriving() -> AsyncIterator[RawRequest[RequestHeader] | Malformed]:
            for message in messages:
                yield raw_request(message)

        reader = asyncio.create_task(self.stream.read(arriving()))
        reader.add_done_callback(self.stream.on_reader_done)
        await settle()
        try:
            yield
        finally:
            reader.cancel()
            await asyncio.wait([reader])

    @property
    def begun(self) -> list[str]:
        return [each.id for each in self.calls.requests]

    async def sent(self) -> list[tuple[str, str]]:
        """Return id and status of the ready responses; the status of a success is empty."""
        await settle()
        found = []
        for data in self.stream.responses.get_batch_nowait():
            response = oip.ModelStreamInferResponse.FromString(data).infer_response
            found.append((response.id, response.parameters["status"].string_param))
            self.stream.on_sent(data)
        await settle()
        return found


async def settle() -> None:
    await turns(10)


async def test_unread_response_bytes_pause_reading() -> None:
    streaming = Streaming(window=4)

    async def arriving() -> AsyncIterator[RawRequest[RequestHeader] | Malformed]:
        yield raw_request(*requests("a"))
        await settle()
        streaming.calls.requests[0].complete(MAX_UNREAD_BYTES)
        await settle()
        yield raw_request(*requests("b"))

    reader = asyncio.create_task(streaming.stream.read(arriving()))
    for _ in range(5):
        await settle()
    assert streaming.begun == ["a"]
    assert await streaming.sent() == [("a", "")]
    await reader
    assert streaming.begun == ["a", "b"]


async def test_cancellation_is_read_despite_a_full_window() -> None:
    streaming = Streaming(window=1)
    async with streaming.reading([*requests("a"), cancel_request("a"), *requests("b")]):
        assert await streaming.sent() == [("a", "CANCELLED")]
        assert streaming.begun == ["a", "b"]


async def test_stream_ends_once_all_responses_are_sent() -> None:
    streaming = Streaming(window=4)
    async with streaming.reading([*requests("a", "b"), cancel_request("b")]):
        assert not streaming.stream.responses.closed
        streaming.calls.requests[0].complete()
        assert sorted(await streaming.sent()) == [("a", ""), ("b", "CANCELLED")]
        assert streaming.stream.responses.closed


@pytest.mark.parametrize(
    ("said", "window"),
    [("1", 1), ("1024", 1024), (str(2**63 - 1), MAX_WINDOW), (None, STREAM_WINDOW)],
)
def test_window_is_taken_from_metadata_up_to_a_limit(said: str | None, window: int) -> None:
    metadata = [("user-agent", "7"), *([] if said is None else [(WINDOW_METADATA, said)])]
    assert window_from_metadata(metadata) == window


@pytest.mark.parametrize("said", ["", "0", "-1", "1.5", "²", "9" * 5000])
def test_malformed_window_is_rejected(said: str) -> None:
    with pytest.raises(InvalidInput, match=WINDOW_METADATA):
        window_from_metadata([(WINDOW_METADATA, said)])


async def test_abandoned_stream_cancels_its_requests() -> None:
    streaming = Streaming(window=4)
    async with streaming.reading(requests("a", "b")):
        streaming.stream.abandon()
        assert [each.result.cancelled() for each in streaming.calls.requests] == [True, True]


async def test_response_is_written_at_once_while_the_handler_waits_for_one() -> None:
    streaming, written = Streaming(window=1), list[bytes]()

    def write_at_once(response: bytes) -> bool:
        written.append(response)
        return len(written) == 1

    streaming.stream.write_at_once = write_at_once
    handler = asyncio.create_task(streaming.stream.next_to_send())
    async with streaming.reading(requests("a", "b")):
        streaming.calls.requests[0].complete()
        await settle()
        assert not handler.done()
        streaming.calls.requests[1].complete()
        await settle()
        assert await handler == written[1]


class HarnessCalls(FakeCalls):
    """Calls that start requests of a gateway."""

    def __init__(self, harness: GatewayHarness) -> None:
        self._harness = harness

    def begin(self, *_: object) -> Any:
        return self._harness.begin_request()


async def test_answered_request_leaves_no_garbage(harness: GatewayHarness) -> None:
    worker, streaming = harness.add_worker(), Streaming(window=4)
    streaming.stream._begin_call = HarnessCalls(harness).begin
    gc.collect()
    gc.disable()
    try:
        async with streaming.reading(requests("a")):
            [assignment] = harness.assignments(worker)
            response = oip.ModelInferResponse(id="a").SerializeToString()
            harness.complete(worker, assignment, [response], done=1)
            del assignment
            assert len(await streaming.sent()) == 1
            assert not any(type(each) is Request for each in gc.get_objects())
    finally:
        gc.enable()


async def test_response_that_disconnects_its_client_ends_its_request_once(
    harness: GatewayHarness,
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    worker = harness.add_worker()
    streaming = Streaming(window=4, unread=UnreadResponses(max_bytes=COUNTED_BYTES))
    streaming.stream._begin_call = HarnessCalls(harness).begin
    async with streaming.reading(requests("a")):
        [assignment] = harness.assignments(worker)
        large = oip.ModelInferResponse(id="a", raw_output_contents=[bytes(2 * COUNTED_BYTES)])
        harness.complete(worker, assignment, [large.SerializeToString()], done=1)
        await settle()
    assert not faults
