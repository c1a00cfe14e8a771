"""Correlation of replies with queries on one stream."""

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Final, Self, cast

import grpc
import pytest

from synergai.client.channel import GatewayChannel
from synergai.client.streaming import InferResult, QueryMultiplexer, stream_queries
from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.oip import inference_pb2 as oip

Reply = oip.ModelStreamInferResponse


class FakeCall:
    """A call whose replies are put into a queue; None ends it.

    Attributes:
        written: requests received.
        cancelled: the call was cancelled.
    """

    def __init__(self) -> None:
        self.replies: asyncio.Queue[Reply | None] = asyncio.Queue()
        self.written: asyncio.Queue[oip.ModelInferRequest] = asyncio.Queue()
        self.cancelled = False

    def answer(self, *ids: str) -> None:
        for request_id in ids:
            self.replies.put_nowait(Reply(infer_response=oip.ModelInferResponse(id=request_id)))

    async def write(self, message: oip.ModelInferRequest) -> None:
        self.written.put_nowait(message)

    async def done_writing(self) -> None:
        pass

    def cancel(self) -> None:
        self.cancelled = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Reply:
        reply = await self.replies.get()
        if reply is None:
            raise StopAsyncIteration
        return reply


def channel_with(call: FakeCall) -> GatewayChannel:
    oip_stub = SimpleNamespace(ModelStreamInfer=lambda **_: call)
    channel = SimpleNamespace(
        target="gate:1",
        gateway=0,
        oip=oip_stub,
        cancellation_cause=lambda cause: cause,
        ensure_open=lambda: None,
    )
    return cast("GatewayChannel", channel)


async def no_requests() -> AsyncIterator[oip.ModelInferRequest]:
    await asyncio.Event().wait()
    yield oip.ModelInferRequest()


def a_multiplexer(call: FakeCall) -> QueryMultiplexer:
    return QueryMultiplexer(channel_with(call), 4, no_requests())


def expect(multiplexer: QueryMultiplexer, count: int) -> list[asyncio.Future[Reply | None]]:
    return [multiplexer.expect(oip.ModelInferRequest()) for _ in range(count)]


def expect_ids(
    multiplexer: QueryMultiplexer, count: int
) -> tuple[list[str], list[asyncio.Future[Reply | None]]]:
    """Return the ids that the multiplexer gave, and the futures of the replies."""
    requests = [oip.ModelInferRequest() for _ in range(count)]
    futures = [multiplexer.expect(request) for request in requests]
    return [request.id for request in requests], futures


async def reply_id(pending: asyncio.Future[Reply | None]) -> str:
    reply = await pending
    assert reply is not None
    return reply.infer_response.id


async def test_replies_are_matched_by_id_in_any_order() -> None:
    call = FakeCall()
    multiplexer = a_multiplexer(call)
    ids, (first, second) = expect_ids(multiplexer, 2)
    call.answer(*reversed(ids))
    assert [await reply_id(first), await reply_id(second)] == ids
    await multiplexer.close()
    assert call.cancelled


async def test_streams_do_not_repeat_the_ids_of_others() -> None:
    # The gateway draws the version of a request in a rollout from its id. If each client began
    # with the same one, the first requests of all would get the same version.
    ids: list[str] = []
    for _ in range(20):
        multiplexer = a_multiplexer(FakeCall())
        given, _ = expect_ids(multiplexer, 2)
        ids += given
        await multiplexer.close()
    assert len(set(ids)) == 40


async def test_replies_without_ids_answer_the_oldest_query() -> None:
    call = FakeCall()
    multiplexer = a_multiplexer(call)
    first, second = expect(multiplexer, 2)
    call.answer("")
    await first
    assert not second.done()
    await multiplexer.close()
    assert await second is None


async def test_stream_that_ends_early_is_unavailable() -> None:
    call = FakeCall()
    multiplexer = a_multiplexer(call)
    [pending] = expect(multiplexer, 1)
    call.replies.put_nowait(None)
    assert await pending is None
    assert isinstance(multiplexer.failure, Unavailable)
    assert await multiplexer.expect(oip.ModelInferRequest()) is None
    await multiplexer.close()


# --- a stream of many queries -----------------------------------------------------------------


async def an_empty_request(_: object) -> oip.ModelInferRequest:
    return oip.ModelInferRequest()


async def collect(call: FakeCall, queries: int) -> list[InferResult | SynergaiError]:
    results = stream_queries(
        channel_with(call),
        [{} for _ in range(queries)],
        an_empty_request,
        window=queries,
    )
    return [result async for result in results]


@pytest.mark.parametrize(
    ("answered", "unknown", "error"),
    [
        (0, ["7"], InvalidInput),
        (2, [], InvalidInput),
        (0, ["x"], InvalidInput),
        (1, [], Unavailable),
        (0, [], Unavailable),
    ],
)
async def test_wrong_replies_fail_the_stream(
    answered: int, unknown: list[str], error: type[SynergaiError]
) -> None:
    """The first query is answered so many times, then others that were never asked."""
    call = FakeCall()
    collecting = asyncio.create_task(collect(call, 2))
    first = (await call.written.get()).id
    await call.written.get()
    call.answer(*[first] * answered, *unknown)
    call.replies.put_nowait(None)
    with pytest.raises(error, match=r"unknown query|before all queries"):
        await collecting
    assert call.cancelled


INPUT_ERRORS: Final = (
    InvalidInput("the inputs are broken"),
    Unavailable("another gateway is"),
    grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata()),
    asyncio.CancelledError(),
    asyncio.InvalidStateError(),
    concurrent.futures.CancelledError(),
    GeneratorExit(),
    KeyboardInterrupt(),
    SystemExit(),
)


@pytest.mark.timeout(15)
@pytest.mark.parametrize("error", INPUT_ERRORS, ids=lambda error: type(error).__name__)
async def test_error_of_the_inputs_is_raised_after_the_results_of_those_before_it(
    error: BaseException,
) -> None:
    async def inputs() -> AsyncIterator[dict[str, float]]:
        yield {}
        await answered.wait()
        raise error

    class EndingCall(FakeCall):
        async def done_writing(self) -> None:
            self.replies.put_nowait(None)

    call, answered = EndingCall(), asyncio.Event()
    results = stream_queries(channel_with(call), inputs(), an_empty_request, window=4)
    first = asyncio.ensure_future(anext(results))
    call.answer((await call.written.get()).id)
    assert (await first).error is None
    answered.set()
    with pytest.raises(type(error)) as failure:
        await anext(results)
    assert failure.value is error
    assert call.cancelled
