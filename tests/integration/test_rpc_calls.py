"""Handlers of `synergai.wire.rpc` on a real server: failures as seen by a client."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, ClassVar, NoReturn, TypeAlias
from weakref import WeakSet

import grpc
import pytest

from synergai.errors import EngineNotFound, Overloaded, PermissionDenied, Unavailable
from synergai.v1 import common_pb2, hub_pb2
from synergai.wire import rpc
from synergai.wire.request_codec import Buffer
from synergai.wire.server_call import ServerCall
from synergai.wire.writes import keep_status
from tests.calls import raw_responses, raw_stream, raw_unary
from tests.grpc_servers import new_server
from tests.integration.conftest import both_servers
from tests.waiting import until

RawStream: TypeAlias = (
    grpc.aio.StreamStreamCall[bytes, bytes] | grpc.aio.UnaryStreamCall[bytes, bytes]
)


class Held:
    """A parsed request that knows which of its kind still exist."""

    alive: ClassVar[WeakSet[Held]] = WeakSet()

    def __init__(self, data: bytes) -> None:
        self.engine = hub_pb2.LoadEngine.FromString(data).session.engine
        self.alive.add(self)


class Echo:
    """A call that responds with its request."""

    def __init__(self, data: bytes) -> None:
        self.result: asyncio.Future[Buffer] = asyncio.Future()
        self.result.set_result(data)

    def abandon(self) -> None:
        """Do nothing: the result is there."""


def hold(request: rpc.RawRequest[Held], _context: object, _on_response: object) -> Echo:
    raise EngineNotFound(request.parsed.engine)


def echo(
    request: rpc.RawRequest[hub_pb2.LoadEngine], _context: object, _on_response: object
) -> Echo:
    return Echo(bytes(request.data))


def finish(result: Buffer, _context: object) -> bytes:
    return bytes(result)


async def unknown(request: hub_pb2.LoadEngine, _context: object) -> hub_pb2.LoadEngine:
    raise EngineNotFound(request.session.engine)


async def quote(_request: hub_pb2.LoadEngine, _context: object) -> hub_pb2.LoadEngine:
    raise Overloaded("a lone surrogate, as JSON may contain: \ud800")


async def bug(_request: hub_pb2.LoadEngine, _context: object) -> hub_pb2.LoadEngine:
    secret = "must not reach clients"
    raise KeyError(secret)


async def shed(_request: hub_pb2.LoadEngine, _context: object) -> hub_pb2.LoadEngine:
    raise Overloaded("too much")


async def leak(_request: hub_pb2.LoadEngine, _context: object) -> hub_pb2.LoadEngine:
    inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    inner.cancel()
    await inner
    return hub_pb2.LoadEngine()


async def echo_all(
    requests: AsyncIterator[hub_pb2.LoadEngine], _context: object
) -> AsyncGenerator[hub_pb2.LoadEngine, None]:
    async for request in requests:
        yield request


async def answer_each(
    requests: AsyncIterator[bytes], _context: object
) -> AsyncGenerator[bytes, None]:
    async for request in requests:
        yield request


async def write_each(
    requests: AsyncIterator[rpc.RawRequest[hub_pb2.LoadEngine] | rpc.Malformed],
    context: ServerCall,
) -> None:
    async for request in requests:
        await context.write(b"malformed" if isinstance(request, rpc.Malformed) else request.data)


async def write_and_fail(_requests: object, context: ServerCall) -> None:
    await context.write(message())
    raise EngineNotFound("other")


async def count(
    request: hub_pb2.LoadEngine, _context: object
) -> AsyncGenerator[hub_pb2.LoadEngine, None]:
    yield request
    yield request
    raise EngineNotFound(request.session.engine)


async def flood(_request: hub_pb2.LoadEngine, _context: object) -> AsyncGenerator[bytes, None]:
    for _ in range(3):
        yield bytes(16 << 20)


@pytest.fixture
async def address(grpc_server: str) -> AsyncIterator[str]:
    cls = hub_pb2.LoadEngine
    server = new_server(grpc_server)
    address = server.bind("127.0.0.1:0")
    server.start(
        (
            rpc.Service(
                "test",
                {
                    "Echo": rpc.BegunUnary(echo, finish, cls.FromString, cls),
                    "Unknown": rpc.unary(unknown, cls),
                    "Bug": rpc.unary(bug, cls),
                    "Shed": rpc.unary(shed, cls),
                    "Hold": rpc.BegunUnary(hold, finish, Held, cls),
                    "Quote": rpc.unary(quote, cls),
                    "Leak": rpc.unary(leak, cls),
                    "EchoAll": rpc.stream(echo_all, cls),
                    "AnswerEach": rpc.bytes_stream(answer_each),
                    "WriteEach": rpc.raw_written_stream(write_each, cls.FromString, cls),
                    "WriteAndFail": rpc.raw_written_stream(write_and_fail, cls.FromString, cls),
                    "Flood": rpc.server_stream(flood, cls),
                    "Count": rpc.server_stream(count, cls),
                },
            ),
        )
    )
    yield address
    await server.stop(0.0)


@pytest.fixture
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address, options=rpc.channel_options()) as channel:
        yield channel


def message(engine: str = "digits") -> bytes:
    return hub_pb2.LoadEngine(session=common_pb2.Session(engine=engine)).SerializeToString()


async def call(channel: grpc.aio.Channel, method: str, data: bytes) -> bytes:
    return await raw_unary(channel, f"/test/{method}")(data, timeout=30)


async def failure_of(channel: grpc.aio.Channel, method: str, data: bytes) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, method, data)
    return caught.value


async def collect(answers: RawStream, into: list[bytes]) -> None:
    try:
        async for answer in answers:
            into.append(answer)  # noqa: PERF401 - a comprehension would lose what came before an error
    finally:
        answers.cancel()


@both_servers
async def test_shed_call_gets_a_retry_delay(channel: grpc.aio.Channel) -> None:
    shed, unknown = [await failure_of(channel, m, message()) for m in ("Shed", "Unknown")]
    assert int(dict(shed.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    assert "grpc-retry-pushback-ms" not in dict(unknown.trailing_metadata())


@both_servers
async def test_long_error_message_is_truncated_and_keeps_its_code(
    channel: grpc.aio.Channel,
) -> None:
    endless = hub_pb2.LoadEngine(session=common_pb2.Session(engine="e" * 100_000))
    error = await failure_of(channel, "Unknown", endless.SerializeToString())
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert len(error.details() or "") == 1000


@both_servers
async def test_error_message_that_utf_8_cannot_encode_is_escaped(channel: grpc.aio.Channel) -> None:
    error = await failure_of(channel, "Quote", message())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == r"a lone surrogate, as JSON may contain: \ud800"


async def test_failed_call_keeps_its_request_in_no_reference_cycle(
    channel: grpc.aio.Channel,
) -> None:
    gc.disable()
    try:
        for _ in range(3):
            error = await failure_of(channel, "Hold", message())
            assert error.code() is grpc.StatusCode.NOT_FOUND
        await until(lambda: not Held.alive, 0.05)
    finally:
        gc.enable()


@both_servers
async def test_unexpected_exception_shows_the_client_only_an_id(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    failure = await failure_of(channel, "Bug", message())
    assert failure.code() is grpc.StatusCode.INTERNAL
    details = failure.details() or ""
    assert "must not" not in details
    assert details.split()[2].rstrip(";") in caplog.text
    assert "must not reach clients" in caplog.text


@both_servers
async def test_leaked_cancellation_still_gives_the_client_a_status(
    channel: grpc.aio.Channel,
) -> None:
    failure = await failure_of(channel, "Leak", message())
    assert failure.code() is grpc.StatusCode.UNAVAILABLE


@both_servers
@pytest.mark.parametrize("method", ["Echo", "Unknown"])
async def test_malformed_request_is_an_invalid_argument(
    channel: grpc.aio.Channel, method: str
) -> None:
    failure = await failure_of(channel, method, b"\xff\xff")
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.details() == "the message is not a valid synergai.v1.LoadEngine"


@both_servers
async def test_malformed_message_ends_an_ordinary_stream(channel: grpc.aio.Channel) -> None:
    answers = raw_stream(channel, "/test/EchoAll")(iter([message(), b"\xff\xff"]), timeout=30)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(answers, [])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@both_servers
@pytest.mark.parametrize(
    ("method", "answer"), [("AnswerEach", b"\xff"), ("WriteEach", b"malformed")]
)
async def test_malformed_message_does_not_end_a_stream_of_bytes_or_a_written_one(
    channel: grpc.aio.Channel, method: str, answer: bytes
) -> None:
    sent = [message(), b"\xff", message("other")]
    got: list[bytes] = []
    await collect(raw_stream(channel, f"/test/{method}")(iter(sent), timeout=30), got)
    assert got == [sent[0], answer, sent[2]]


@both_servers
async def test_error_of_a_writing_handler_ends_its_stream_after_its_responses(
    channel: grpc.aio.Channel,
) -> None:
    got: list[bytes] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(raw_stream(channel, "/test/WriteAndFail")(iter([]), timeout=30), got)
    assert got == [message()]
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_cancelling_a_written_stream_is_not_logged(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        answers = raw_stream(channel, "/test/WriteEach")(timeout=30)
        await answers.write(message())
        await answers.read()
        await answers.write(message())
        answers.cancel()
        await call(channel, "Echo", message())
    assert caplog.records == []


@both_servers
async def test_error_after_responses_ends_a_server_stream(channel: grpc.aio.Channel) -> None:
    got: list[bytes] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(raw_responses(channel, "/test/Count")(message(), timeout=30), got)
    assert got == [message(), message()]
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@both_servers
async def test_port_in_use_is_a_clear_error(address: str, grpc_server: str) -> None:
    with pytest.raises(Unavailable, match="port is in use"):
        new_server(grpc_server).bind(address)


async def test_client_disconnect_during_a_response_is_not_logged(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    answers = raw_responses(channel, "/test/Flood")(message(), timeout=30)
    await answers.read()
    answers.cancel()
    # The server's end of the call is over before it answers another one.
    for _ in range(20):
        await call(channel, "Echo", message())
    assert caplog.records == []


CALLS = 60
AT_ONCE = 20


async def refuse(_requests: object, context: ServerCall) -> NoReturn:
    await rpc.abort(context, PermissionDenied("not for you"))


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Write until the call fails; return its status."""
    try:
        while True:
            await call.write(bytes(100_000))
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return await call.code(), await call.details()
    finally:
        call.cancel()


@both_servers
async def test_status_of_a_refused_call_is_kept_when_a_write_fails(grpc_server: str) -> None:
    server = new_server(grpc_server)
    handler: Any = grpc.stream_stream_rpc_method_handler(refuse)
    address = server.bind("127.0.0.1:0")
    server.start([rpc.Service("test", {"Refuse": handler})])
    seen: set[tuple[grpc.StatusCode, str]] = set()
    async with grpc.aio.insecure_channel(address) as channel:
        method: Any = channel.stream_stream("/test/Refuse")
        for _ in range(CALLS // AT_ONCE):
            calls = [status_of(keep_status(method())) for _ in range(AT_ONCE)]
            seen.update(await asyncio.wait_for(asyncio.gather(*calls), 60))
    await server.stop(0.0)
    assert seen == {(grpc.StatusCode.PERMISSION_DENIED, "not for you")}
