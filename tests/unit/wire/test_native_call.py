"""Calls of gRPC on the streams of a connection."""

import asyncio
import gc
import gzip
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

import grpc
import pytest
from hpack import Decoder

from synergai.errors import Overloaded
from synergai.v1 import hub_pb2
from synergai.wire import rpc
from synergai.wire.memory_bounds import IncompleteRequests
from synergai.wire.native import handled_calls
from synergai.wire.native.call import Call, CallState
from synergai.wire.native.flow import FrameLimits, Sender, Stream
from synergai.wire.native.handled_calls import Handlers, accept_call
from synergai.wire.native.headers import CallHeaders
from synergai.wire.native.session import NativeSession
from synergai.wire.server_call import SocketPeer
from tests import http2
from tests.http2 import DATA, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame
from tests.waiting import turns, until

MAX_BYTES = 1 << 21
MAX_INCOMPLETE_BYTES = 1 << 20
caller: ContextVar[str] = ContextVar("caller")


class Work:
    def __init__(self, on_response: Callable[[bytes | memoryview], None] | None) -> None:
        self.result: asyncio.Future[bytes | memoryview] = asyncio.Future()
        self.on_response = on_response

    def abandon(self) -> None:
        self.result.cancel()


def peer(host: str, port: int) -> SocketPeer:
    return SocketPeer(asyncio.Transport({"peername": (host, port)}))


class Server:
    """A server of ``/a/*`` with one client, whose flow-control window is 65,535 bytes.

    Attributes:
        calls: the contexts of the calls.
        ended: names of methods whose handlers have ended.
        taken: requests that were taken as they arrived, and for which caller.
        begun: what calls of ``Begin`` wait for.
        peer: the client of further calls.
    """

    def __init__(self, interceptor: Any = None) -> None:
        self.calls: list[Call] = []
        self.ended: list[str] = []
        self.taken: list[tuple[bytes, str]] = []
        self.begun: list[Work] = []
        self.peer = peer("192.0.2.0", 80)
        self._sent = self._unread = b""
        self._handlers = Handlers(MAX_BYTES, interceptor)
        self._handlers.incomplete = IncompleteRequests(MAX_INCOMPLETE_BYTES)
        self._handlers.add((rpc.Service("a", self._methods()),))
        self.session = NativeSession(Sender(self._send), self._accept, FrameLimits())
        self.receive(PREFACE + frame(SETTINGS, 0, 0))
        self._decoder = Decoder()

    def _methods(self) -> dict[str, Any]:
        unary = grpc.unary_unary_rpc_method_handler
        stream: Callable[[Any], Any] = grpc.stream_stream_rpc_method_handler
        return {
            "Echo": unary(self.echo),
            "Begin": rpc.BegunUnary(self.begin, self.finish, bytes, hub_pb2.LoadEngine),
            "Long": unary(self.answer_at_length),
            "Refuse": unary(self.refuse),
            "Fail": unary(self.fail),
            "Hang": unary(self.hang),
            "Yield": stream(self.respond_in_stream),
            "Write": stream(self.write_in_stream),
            "Take": stream(self.take_in_stream),
            "Describe": unary(self.describe),
            "Collect": grpc.stream_unary_rpc_method_handler(self.collect),
        }

    def receive(self, data: bytes) -> None:
        self._unread += data
        self._unread = self._unread[self.session.receive(self._unread, 1000) :]

    def _send(self, data: bytes) -> None:
        self._sent += data

    def _accept(self, stream: Stream, headers: CallHeaders) -> None:
        if (call := accept_call(self.peer, self._handlers, stream, headers)) is not None:
            self.calls.append(call)

    async def echo(self, request: bytes, _context: Any) -> bytes:
        return request

    def begin(
        self,
        request: rpc.RawRequest[bytes],
        _context: Any,
        on_response: Callable[[bytes | memoryview], None] | None,
    ) -> "Work":
        if request.data == b"refused":
            raise Overloaded("busy")
        self.begun.append(Work(on_response))
        return self.begun[-1]

    def finish(self, result: bytes | memoryview, _context: Any) -> bytes:
        self.ended.append("Begin")
        return bytes(result)

    async def answer_at_length(self, _request: bytes, _context: Any) -> bytes:
        return bytes(100_000)

    async def refuse(self, _request: bytes, context: Any) -> bytes:
        await rpc.abort(context, Overloaded("busy"))

    async def fail(self, _request: bytes, _context: Any) -> bytes:
        raise ZeroDivisionError

    async def hang(self, _request: bytes, _context: Any) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append("Hang")
        return b""

    async def respond_in_stream(self, requests: AsyncIterator[bytes], _context: Any) -> Any:
        async for request in requests:
            yield request

    async def write_in_stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)

    async def take_in_stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        caller.set("the caller")

        def take(request: bytes) -> bool:
            self.taken.append((request, caller.get("")))
            return request != b"left" and context.peer.address == "ipv4:192.0.2.0:80"

        context.take_at_once(take)
        async for request in requests:
            await context.write(request)

    async def describe(self, request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("first", "1"), ("first-bin", b"\0")))
        await context.send_initial_metadata((("second", "2"),))  # which is too late
        context.set_trailing_metadata((("last", "3"),))
        if request == b"refused":
            await context.abort(grpc.StatusCode.NOT_FOUND, "none")
        return request

    async def collect(self, requests: AsyncIterator[bytes], _context: Any) -> bytes:
        return b",".join([request async for request in requests])

    def call(self, method: str, *requests: bytes, fields: tuple[tuple[str, str], ...] = ()) -> int:
        """Begin a call with these requests; return its stream."""
        number = 2 * len(self.calls) + 1
        self.receive(http2.headers(number, f"/a/{method}", *fields))
        for place, request in enumerate(requests, 1):
            self.receive(http2.message(number, request, last=place == len(requests)))
        return number

    def send_part(self, number: int, size: int, arrived: int) -> None:
        """Send the prefix of a message, and the bytes of it that have arrived."""
        self.receive(frame(DATA, 0, number, b"\0" + size.to_bytes(4)))
        for at in range(0, arrived, 16_000):
            self.receive(frame(DATA, 0, number, bytes(min(16_000, arrived - at))))

    def leave(self, number: int, how: str) -> None:
        """End a call, or all calls of the connection, as the client may."""
        if how == "reset":
            self.receive(http2.reset(number))
        elif how == "close":
            self.session.lose_calls(1000)

    def respond(self, data: bytes) -> None:
        """Give the only call of ``Begin`` that waits its response at once."""
        [work] = self.begun
        assert work.on_response is not None
        work.on_response(data)

    async def code(self, number: int) -> grpc.StatusCode:
        """Return the status of a call once it has ended."""
        _, fields = await self.answer(number)
        [code] = [each for each in grpc.StatusCode if str(each.value[0]) == fields["grpc-status"]]
        return code

    async def answer(self, number: int) -> tuple[bytes, dict[str, str]]:
        """Return the data and the fields that were sent on a stream once it has ended."""
        await until(lambda: "grpc-status" in self._read(number)[1])
        return self._read(number)

    def _read(self, number: int) -> tuple[bytes, dict[str, str]]:
        data, at = b"", 0
        fields: dict[str, str] = {}
        while at < len(self._sent):
            size = int.from_bytes(self._sent[at : at + 3])
            kind, stream = self._sent[at + 3], int.from_bytes(self._sent[at + 5 : at + 9])
            payload = self._sent[at + 9 : at + 9 + size]
            if stream == number and kind == DATA:
                data += payload
            elif stream == number and kind == HEADERS:
                decoded: Any = self._decoder.decode(payload)
                fields |= dict(decoded)
            elif stream == number and kind == RST_STREAM:
                fields["reset"] = str(int.from_bytes(payload))
            at += 9 + size
        return data, fields


@pytest.fixture
async def server() -> Server:
    return Server()


def messages(*contents: bytes) -> bytes:
    return b"".join(http2.message(1, each)[9:] for each in contents)


@pytest.mark.parametrize(("request_", "status"), [(b"x", "0"), (b"refused", "5")])
async def test_handler_sends_metadata_before_and_behind_its_response(
    server: Server, request_: bytes, status: str
) -> None:
    _, fields = await server.answer(server.call("Describe", request_))
    assert (fields["first"], fields["first-bin"], fields["last"]) == ("1", "AA", "3")
    assert (fields["grpc-status"], "second" in fields) == (status, False)


@pytest.mark.parametrize(
    ("method", "requests", "code"),
    [
        ("Missing", (b"x",), grpc.StatusCode.UNIMPLEMENTED),
        ("Fail", (b"x",), grpc.StatusCode.UNKNOWN),
        ("Echo", (bytes(MAX_BYTES + 1),), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_faulty_call_ends_with_its_status(
    server: Server, method: str, requests: tuple[bytes, ...], code: grpc.StatusCode
) -> None:
    number = server.call(method)
    prefix = b"\0" + len(requests[0]).to_bytes(4)
    server.receive(frame(DATA, 0, number, prefix + requests[0][:100]))
    assert await server.code(number) is code


async def test_malformed_field_ends_its_call_and_no_other(server: Server) -> None:
    other = server.call("Echo", b"x")
    number = server.call("Echo", b"x", fields=(("x-bin", "?"),))
    assert await server.code(number) is grpc.StatusCode.INTERNAL
    assert server._read(number)[1]["grpc-message"] == "malformed binary metadata"
    assert (await server.answer(other))[1]["grpc-status"] == "0"


@pytest.mark.parametrize("part", [b"\0", b"\0\0\0\0\2x"], ids=["prefix", "message"])
@pytest.mark.parametrize("method", ["Echo", "Begin", "Collect", "Yield", "Write"])
async def test_call_that_its_client_ends_within_a_message_fails(
    server: Server, method: str, part: bytes
) -> None:
    number = 2 * len(server.calls) + 1
    server.receive(http2.headers(number, f"/a/{method}"))
    server.receive(frame(DATA, http2.END_STREAM, number, part))
    fields = (await server.answer(number))[1]
    assert fields["grpc-status"] == str(grpc.StatusCode.INTERNAL.value[0])
    assert fields["grpc-message"] == "the client has ended the call within a message"


async def test_unary_call_without_a_request_is_an_error(server: Server) -> None:
    number = server.call("Echo")
    server.receive(frame(DATA, http2.END_STREAM, number))
    assert await server.code(number) is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("method", ["Hang", "Begin"])
async def test_unary_call_takes_nothing_behind_its_request(server: Server, method: str) -> None:
    number = server.call(method)
    further = b"\0" + MAX_BYTES.to_bytes(4) + bytes(600_000)
    server.receive(http2.message(number, b"x", last=False))
    await turns(3)
    sent = len(server._sent)
    for at in range(0, len(further), 16_000):
        server.receive(frame(DATA, 0, number, further[at : at + 16_000]))
    await turns(3)
    assert server._sent[sent:] == b""  # no larger window
    server.receive(http2.reset(number))


async def test_what_is_no_call_of_grpc_gets_a_status_of_http(server: Server) -> None:
    server.call("Echo", fields=(("content-type", "text/html"),))
    await until(lambda: server._read(1)[1].get(":status"))
    assert server._read(1)[1] == {":status": "415", "reset": "0"}


async def test_deadline_ends_a_call_and_its_handler(server: Server) -> None:
    assert (
        await server.code(server.call("Hang", b"x", fields=(("grpc-timeout", "1m"),)))
        is grpc.StatusCode.DEADLINE_EXCEEDED
    )
    await until(lambda: server.ended)


async def test_deadline_ends_a_response_that_is_not_read(server: Server) -> None:
    number = server.call("Long", b"x", fields=(("grpc-timeout", "20m"),))
    await until(lambda: "reset" in server._read(number)[1])
    assert server.session.ended


async def test_call_lasts_until_its_client_has_read_the_response(server: Server) -> None:
    number = server.call("Long", b"x")
    await until(lambda: server._read(number)[0])
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(server._handlers.tasks) == 1
    for stream in (0, number):
        server.receive(frame(http2.WINDOW_UPDATE, 0, stream, (1 << 20).to_bytes(4)))
    data, _ = await server.answer(number)
    assert len(data) == 100_005
    await until(lambda: not len(server._handlers.tasks))


async def test_large_response_of_a_stream_is_not_copied_while_its_client_does_not_read(
    server: Server,
) -> None:
    number = server.call("Write")
    await turns()
    [call] = server.calls
    response = bytes(100_000)
    writing = asyncio.create_task(call.write(response))
    await turns()
    assert call._stream._blocked[-1].obj is response
    for stream in (0, number):
        server.receive(frame(http2.WINDOW_UPDATE, 0, stream, (1 << 20).to_bytes(4)))
    await writing
    assert server._read(number)[0] == messages(response)


# --- calls that begin without a task --------------------------------------------------------------


async def test_begun_call_is_answered_in_the_turn_of_its_response(server: Server) -> None:
    number = server.call("Begin", b"x")
    server.respond(b"response")
    assert (len(server._handlers.tasks), server.ended) == (0, [])
    data, fields = await server.answer(number)
    assert (data, fields["grpc-status"]) == (messages(b"response"), "0")


async def test_response_that_cannot_be_sent_at_once_gets_a_task(server: Server) -> None:
    number = server.call("Begin", b"x")
    server.respond(bytes(50_000))
    data, _ = await server.answer(number)
    assert data == messages(bytes(50_000))
    assert server.ended == ["Begin"]


async def test_response_that_its_client_does_not_read_is_kept_once(server: Server) -> None:
    server.call("Begin", b"x")
    result = weakref.ref(server.begun[0].result)
    server.begun.pop().result.set_result(bytes(100_000))
    await turns()
    assert server.calls[0]._stream.is_blocked
    assert result() is None


async def test_result_of_a_begun_call_is_answered(server: Server) -> None:
    number = server.call("Begin", b"x")
    server.begun[0].result.set_result(b"response")
    assert (await server.answer(number))[0] == messages(b"response")


@pytest.mark.parametrize(
    ("request_", "code", "error"),
    [
        (b"refused", grpc.StatusCode.RESOURCE_EXHAUSTED, None),
        (b"x", grpc.StatusCode.RESOURCE_EXHAUSTED, Overloaded("busy")),
        (b"x", grpc.StatusCode.UNAVAILABLE, asyncio.CancelledError()),
    ],
    ids=["refused", "failed", "cancelled by the server"],
)
async def test_error_of_a_begun_call_ends_it(
    server: Server, request_: bytes, code: grpc.StatusCode, error: BaseException | None
) -> None:
    number = server.call("Begin", request_)
    if isinstance(error, Overloaded):
        server.begun[0].result.set_exception(error)
    elif error is not None:
        server.begun[0].result.cancel()
    assert await server.code(number) is code


async def test_begun_call_without_a_request_or_with_a_compressed_one_is_an_ordinary_one(
    server: Server,
) -> None:
    number = server.call("Begin")
    server.receive(frame(DATA, http2.END_STREAM, number))
    assert (await server.answer(number))[1]["grpc-status"] == "13"
    number = server.call("Begin", fields=(("grpc-encoding", "gzip"),))
    packed = gzip.compress(b"x")
    server.receive(frame(DATA, http2.END_STREAM, number, b"\1" + len(packed).to_bytes(4) + packed))
    await until(lambda: server.begun)
    server.begun[0].result.set_result(b"response")
    assert (await server.answer(number))[0] == messages(b"response")


async def test_compressed_request_with_a_part_of_another_is_answered(server: Server) -> None:
    number = server.call("Begin", fields=(("grpc-encoding", "gzip"),))
    further = b"\0" + (500_000).to_bytes(4) + bytes(1000)
    server.receive(frame(DATA, 0, number, compressed(number, b"x")[9:] + further))
    await until(lambda: server.begun)
    server.begun[0].result.set_result(b"response")
    assert (await server.answer(number))[0] == messages(b"response")
    assert server._handlers.incomplete._bytes == 0


@pytest.mark.parametrize("leave", ["reset", "close", "deadline"])
async def test_begun_call_is_abandoned_with_its_client(server: Server, leave: str) -> None:
    fields = (("grpc-timeout", "1m"),) if leave == "deadline" else ()
    number = server.call("Begin", b"x", fields=fields)
    server.leave(number, leave)
    await until(server.begun[0].result.cancelled)
    assert not len(server._handlers.tasks)


@pytest.mark.parametrize("began", [True, False])
@pytest.mark.parametrize("leave", ["reset", "close"])
async def test_error_that_its_client_no_longer_awaits_is_not_logged(
    server: Server, began: bool, leave: str
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    number = server.call("Begin", b"x" if began else b"refused")
    if began:
        server.begun.pop().result.set_exception(Overloaded("busy"))
        await turns(1)
    server.leave(number, leave)
    server.calls.clear()
    await turns()
    gc.collect()
    assert not faults


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["reset", "close"])
async def test_handler_ends_with_its_client(server: Server, leave: str) -> None:
    number = server.call("Hang", b"x")
    await asyncio.sleep(0)
    server.leave(number, leave)
    await until(lambda: server.ended)
    assert "grpc-status" not in server._read(number)[1]


@pytest.mark.parametrize("method", ["Hang", "Write", "Take", "Echo", "Begin", "Refuse"])
@pytest.mark.parametrize("after", [0, 1, 10])
async def test_call_that_is_reset_leaves_no_garbage(
    server: Server, method: str, after: int
) -> None:
    gc.collect()
    gc.disable()
    try:
        number = server.call(method, b"x")
        await turns(after)
        call = weakref.ref(server.calls.pop())
        server.begun.clear()
        server.receive(http2.reset(number))
        await turns()
        assert call() is None
    finally:
        gc.enable()


async def test_handler_that_is_cancelled_by_the_server_answers(server: Server) -> None:
    number = server.call("Hang", b"x")
    await asyncio.sleep(0)
    server._handlers.tasks.cancel()
    assert await server.code(number) is grpc.StatusCode.CANCELLED


async def test_requests_that_are_not_read_stop_the_client(server: Server) -> None:
    # The handler waits for the client to read its first responses.
    number = server.call("Write")
    for _ in range(50):
        server.receive(http2.message(number, bytes(16_000), last=False))
        await asyncio.sleep(0)
    [call] = server.calls
    assert call._stream.room < MAX_BYTES // 2
    assert call._requests


@pytest.mark.parametrize(("size", "widens"), [(800_000, False), (1_500_000, True)])
async def test_client_may_send_more_only_if_its_message_needs_it(
    server: Server, size: int, widens: bool
) -> None:
    number = server.call("Echo")
    server.send_part(number, size, 40 * 16_000)
    await turns()
    assert (frame(http2.WINDOW_UPDATE, 0, number, b"")[3:] in server._sent) is widens


async def test_incomplete_requests_are_limited_whatever_their_size(server: Server) -> None:
    for _ in range(3):
        number = server.call("Echo")
        server.send_part(number, 500_000, 31 * 16_000)
    await turns()
    assert [call.state >= CallState.ENDED for call in server.calls] == [True, False, False]


async def test_client_with_most_incomplete_requests_loses_one(server: Server) -> None:
    server.peer = peer("192.0.2.1", 80)
    honest = server.call("Echo")
    server.send_part(honest, 500_000, 16_000)
    for port in range(3):
        server.peer = peer("192.0.2.2", port)
        number = server.call("Echo")
        server.send_part(number, 500_000, 31 * 16_000)
    await turns()
    assert [call.state >= CallState.ENDED for call in server.calls] == [False, True, False, False]


@pytest.mark.parametrize("method", ["Begin", "Echo"])
async def test_data_behind_the_request_of_a_unary_call_is_dropped(
    server: Server, method: str
) -> None:
    for _ in range(2 * MAX_INCOMPLETE_BYTES // 15_000):
        number = server.call(method)
        data = b"\0\0\0\0\1x" + b"\0" + (500_000).to_bytes(4) + bytes(15_000)
        server.receive(frame(DATA, 0, number, data))
        if method == "Begin":
            server.respond(b"y")
            server.begun.clear()
        await turns()
    assert server._handlers.incomplete._bytes == 0


async def test_refused_request_takes_no_memory_while_its_client_does_not_read(
    server: Server,
) -> None:
    number = server.call("Write")
    server.receive(http2.message(number, b"x", last=False))
    await turns()
    call = server.calls[0]
    server.receive(frame(DATA, 0, number, b"\0" + (500_000).to_bytes(4) + bytes(15_000)))
    call.refuse(Overloaded("busy"))
    assert not call._reader._pieces
    assert server._handlers.incomplete._bytes == 0


async def test_request_that_is_incomplete_for_longest_ends_if_they_take_too_much_memory(
    server: Server,
) -> None:
    first, second = server.call("Echo"), server.call("Echo")
    for number in (first, second):
        server.send_part(number, MAX_BYTES, 40 * 16_000)
    assert await server.code(first) is grpc.StatusCode.RESOURCE_EXHAUSTED
    for at in range(40 * 16_000, MAX_BYTES, 16_000):
        flags = http2.END_STREAM if at + 16_000 >= MAX_BYTES else 0
        server.receive(frame(DATA, flags, second, bytes(min(16_000, MAX_BYTES - at))))
    await turns()
    assert server.calls[1].state >= CallState.ENDED
    server.send_part(server.call("Echo"), MAX_BYTES, 40 * 16_000)  # the only one that is incomplete
    await turns()
    assert not server.calls[2].state >= CallState.ENDED


async def test_stream_counts_only_its_request_that_has_not_arrived_in_full(
    server: Server,
) -> None:
    server._handlers.incomplete = IncompleteRequests(3 << 20)
    stream = server.call("Take")
    parts = messages(*[bytes(1_500_000)] * 5)[:-1]
    for at in range(0, len(parts), 16_000):
        server.receive(frame(DATA, 0, stream, parts[at : at + 16_000]))
        await turns()
    assert len(server.taken) == 4
    other = server.call("Echo")
    server.send_part(other, MAX_BYTES, 40 * 16_000)
    await turns()
    assert not any(call.state >= CallState.ENDED for call in server.calls)


@pytest.mark.parametrize("compressed", [0, 1])
async def test_small_requests_that_are_not_read_take_little_memory(
    server: Server, compressed: int
) -> None:
    number = server.call("Write", fields=(("grpc-encoding", "gzip"),))
    for _ in range(5):
        server.receive(http2.message(number, bytes(15_000), last=False))
        await turns()  # the client reads no more of the responses then
    part = frame(DATA, 0, number, (bytes([compressed]) + bytes(3) + b"\1x") * 2000)
    tracemalloc.start()
    try:
        for _ in range(40):
            server.receive(part)
        assert tracemalloc.get_traced_memory()[0] < 1.2 * 40 * len(part)
    finally:
        tracemalloc.stop()
    server.receive(http2.reset(number))


async def test_small_requests_of_one_frame_are_taken_in_order(server: Server) -> None:
    contents = [str(number).encode() for number in range(500)]
    number = server.call("Yield")
    parts = messages(*contents)
    for at in range(0, len(parts), 700):
        server.receive(frame(DATA, 0, number, parts[at : at + 700]))
    server.receive(frame(DATA, http2.END_STREAM, number, b""))
    data, fields = await server.answer(number)
    assert (data, fields["grpc-status"]) == (parts, "0")


async def test_call_ends_with_a_request_that_is_too_large_behind_others(server: Server) -> None:
    number = server.call("Yield")
    parts = messages(*[b"x"] * 100) + b"\0" + (MAX_BYTES + 1).to_bytes(4)
    server.receive(frame(DATA, 0, number, parts))
    assert await server.code(number) is grpc.StatusCode.RESOURCE_EXHAUSTED
    await until(lambda: not len(server._handlers.tasks))


async def test_message_that_is_incomplete_takes_no_more_memory_than_its_bytes(
    server: Server,
) -> None:
    # Of each buffer, the call keeps one part; the rest is data of another call, which has ended.
    number, other = server.call("Echo"), server.call("Echo")
    size = 2000
    part = frame(DATA, 0, number, bytes(size))
    rest = frame(DATA, 0, other, bytes(10_000 - size))
    server.receive(frame(DATA, 0, number, b"\0" + (60 * size).to_bytes(4)))
    server.receive(http2.reset(other))
    tracemalloc.start()
    try:
        for _ in range(50):
            server.receive(part + rest)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 60 * size < held < 60 * size + 50_000


async def refuse(context: Any, path: str, handler: Any) -> Any:
    """Refuse calls with the metadata ``refuse``."""
    if ("refuse", "1") in context.invocation_metadata():
        await rpc.abort(context, Overloaded(f"not {path}"))
    return handler


async def test_interceptor_refuses_a_call_before_its_request_arrives() -> None:
    server = Server(refuse)
    _, fields = await server.answer(server.call("Echo", fields=(("refuse", "1"),)))
    assert fields["grpc-message"] == "not /a/Echo"
    data, _ = await server.answer(server.call("Echo", b"x"))
    assert data == messages(b"x")


async def test_requests_of_a_stream_are_taken_as_they_arrive_in_the_context_of_its_handler(
    server: Server,
) -> None:
    number = server.call("Take")
    await turns(3)
    server.receive(http2.message(number, b"one", last=False))
    assert server.taken == [(b"one", "the caller")]
    server.receive(http2.message(number, b"left", last=False))
    server.receive(http2.message(number, b"behind", last=True))
    data, _ = await server.answer(number)
    assert data == messages(b"left", b"behind")


async def test_response_is_written_at_once_only_if_the_client_takes_it(server: Server) -> None:
    number = server.call("Write")
    [call] = server.calls
    assert not call.write_at_once(b"before the response has begun")
    server.receive(http2.message(number, b"first", last=False))
    await turns(3)
    assert call.write_at_once(bytes(10_000))
    assert not call.write_at_once(bytes(60_000))
    server.receive(http2.message(number, b"last", last=True))
    data, _ = await server.answer(number)
    assert data == messages(b"first", bytes(10_000), b"last")
    assert not call.write_at_once(b"after the end")


def compressed(number: int, content: bytes) -> bytes:
    data = gzip.compress(content)
    return frame(DATA, 0, number, b"\1" + len(data).to_bytes(4) + data)


async def test_message_is_decompressed_once_its_handler_asks_for_it(server: Server) -> None:
    with patch.object(
        handled_calls, "decompress", side_effect=handled_calls.decompress
    ) as decompress:
        number = server.call("Hang", fields=(("grpc-encoding", "gzip"),))
        server.receive(3 * compressed(number, bytes(MAX_BYTES)))
        await until(lambda: decompress.call_count > 0)
        await turns()
    assert decompress.call_count == 1


@pytest.mark.parametrize("method", ["Yield", "Take"])
async def test_compressed_requests_of_a_stream_keep_their_order(
    server: Server, method: str
) -> None:
    number = server.call(method, fields=(("grpc-encoding", "gzip"),))
    await turns()
    server.receive(compressed(number, b"first"))
    server.receive(http2.message(number, b"left"))
    data, _ = await server.answer(number)
    assert data == messages(b"first", b"left")


@pytest.mark.parametrize("method", ["Echo", "Yield"])
async def test_call_ends_with_a_message_that_cannot_be_decompressed(
    server: Server, method: str
) -> None:
    number = server.call(method, fields=(("grpc-encoding", "gzip"),))
    server.receive(compressed(number, bytes(MAX_BYTES + 1)))
    assert await server.code(number) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "grpc-retry-pushback-ms" not in server._read(number)[1]  # it would be too large again
