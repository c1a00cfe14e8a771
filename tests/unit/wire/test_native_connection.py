"""Connections of clients, whose bytes arrive in any parts."""

import asyncio
import gc
import random
import tracemalloc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from synergai.wire import rpc
from synergai.wire.native import connection as connection_module
from synergai.wire.native.call import MOST_CUT, prefixed
from synergai.wire.native.connection import CallTurns, ClientConnection
from synergai.wire.native.flow import CREDIT
from synergai.wire.native.handled_calls import Handlers
from tests.http2 import DATA, END_STREAM, PING, PREFACE, SETTINGS, frame, headers, message
from tests.waiting import turns, until

MAX_BYTES = 1 << 22


class Transport(asyncio.Transport):
    """A transport that keeps what is written, and delivers something although it is paused."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.0", 80)})
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


class Client:
    """A client of ``/a/Keep``, which keeps its requests.

    Attributes:
        requests: these requests.
        reads: whether the handler reads them.
        placed: bytes that were not received into the memory of all connections.
        place: the other memory into which bytes were received last.
        handlers: the server's.
        refusals: why the connection was refused.
        transport: what the connection sends to.
    """

    def __init__(self, connection_age: tuple[float, float] = (0.0, 0.0)) -> None:
        self.requests: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.placed = 0
        self.place: weakref.ref[Any] | None = None
        self.handlers = handlers = Handlers(MAX_BYTES)
        handlers.connection_age = connection_age
        methods: dict[str, Any] = {"Keep": grpc.stream_unary_rpc_method_handler(self._keep, bytes)}
        handlers.add((rpc.Service("a", methods),))
        self.refusals: list[Exception] = []
        self._received = handlers.received
        self.connection = ClientConnection(
            handlers, CallTurns(), lambda _, fault: self.refusals.append(fault), lambda _: None
        )
        self.connection.opening = asyncio.create_task(asyncio.sleep(0))
        self.transport = Transport()
        self.transport.set_protocol(self.connection)
        self.connection.connection_made(self.transport)

    async def _keep(self, requests: Any, _context: Any) -> bytes:
        await self.reads.wait()
        async for request in requests:
            self.requests.append(request)
            del request
        return b""

    def send(self, data: bytes, most: int = 1 << 20) -> None:
        """Have the connection receive data, this many bytes at a time at most."""
        while data:
            memory = self.connection.get_buffer(-1)
            size = min(len(memory), len(data), most)
            memory[:size] = data[:size]
            self.connection.buffer_updated(size)
            if memory.obj is not self._received.obj:
                self.placed += size
                self.place = weakref.ref(memory.obj)
            data = data[size:]


def cut(data: bytes, number: int, draw: random.Random) -> bytes:
    frames = []
    while data:
        size = draw.choice([1, 9, 1000, 50_000, 1 << 20])
        frames.append(frame(DATA, 0, number, data[:size]))
        data = data[size:]
    return b"".join(frames)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    client = Client()
    client.send(PREFACE + frame(SETTINGS, 0, 0) + headers(1, "/a/Keep"))
    yield client
    client.connection.connection_lost(None)
    await turns()


@pytest.mark.parametrize("seed", range(12))
async def test_messages_arrive_whole_however_their_bytes_are_cut(client: Client, seed: int) -> None:
    draw = random.Random(seed)
    sizes = draw.choices([0, 1, 1000, 40_000, 600_000, 3_000_000], k=4)
    messages = [draw.randbytes(size) for size in sizes]
    sent = cut(b"".join(map(prefixed, messages)), 1, draw)
    most = draw.choice([100, 5000, 1 << 20])
    for at in range(0, len(sent), 1 << 19):  # the window of a call, until its handler reads
        client.send(sent[at : at + (1 << 19)], most)
        await turns()
    client.send(frame(DATA, END_STREAM, 1), most)
    await turns()
    assert client.requests == messages
    assert not client.refusals


async def test_large_message_is_received_where_it_is_put_together(client: Client) -> None:
    content = bytes(600_000)
    client.send(frame(DATA, END_STREAM, 1, prefixed(content)))
    await turns()
    assert client.requests == [content]
    assert client.placed > 500_000


async def test_connection_keeps_no_message_that_has_arrived(client: Client) -> None:
    sent = frame(DATA, 0, 1, prefixed(bytes(600_000)))
    tracemalloc.start()
    try:
        client.send(sent)
        await turns()
        client.requests.clear()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


async def test_memory_of_an_incomplete_message_is_freed_with_its_call(client: Client) -> None:
    client.send(frame(DATA, 0, 1, prefixed(bytes(600_000)))[:200_000])
    await turns()
    assert client.place is not None
    assert client.place() is not None
    client.connection.get_buffer(-1)  # nothing was there to be received
    client.handlers.tasks.cancel()
    await turns()
    assert client.place() is None


@pytest.mark.parametrize("full", [False, True])
async def test_bytes_are_not_received_at_a_place_before_others_were_handled(
    client: Client, *, full: bool
) -> None:
    messages = [b"x"] * (MOST_CUT + 1) + [random.Random(1).randbytes(600_000)]
    sent = frame(DATA, END_STREAM, 1, b"".join(map(prefixed, messages)))
    client.reads.clear()
    client.send(sent[:100_000])
    if full:
        client.connection.pause_writing()
    client.send(sent[100_000:200_000])
    client.reads.set()
    await turns()
    client.send(sent[200_000:500_000])
    client.connection.resume_writing()
    client.send(sent[500_000:])
    await turns()
    assert client.requests == messages


async def test_connection_that_has_ended_keeps_nothing_of_what_arrives(client: Client) -> None:
    client.connection.end()
    client.send(frame(DATA, 0, 1, prefixed(bytes(600_000))))
    assert client.connection._unread == b""


async def test_frames_behind_a_large_message_are_counted(client: Client) -> None:
    client.send(frame(DATA, 0, 1, prefixed(bytes(600_000))))
    client.send(frame(PING, 0, 0, bytes(8)) * CREDIT)
    assert [str(each) for each in client.refusals] == ["too many frames without data"]


async def test_calls_of_a_client_that_has_left_end_in_turns(client: Client) -> None:
    client.reads.clear()
    for at in range(3, 403, 2):
        client.send(headers(at, "/a/Keep") + message(at, b"x"))
    await until(lambda: len(client.handlers.tasks) == 201)
    client.connection.connection_lost(None)
    await asyncio.sleep(0)
    assert len(client.handlers.tasks) > 150
    await until(lambda: not len(client.handlers.tasks))


async def test_connection_that_is_lost_leaves_no_garbage() -> None:
    client = Client()
    client.send(PREFACE + frame(SETTINGS, 0, 0) + headers(1, "/a/Keep"))
    gc.collect()
    gc.disable()
    try:
        client.connection.connection_lost(None)
        connection = weakref.ref(client.connection)
        del client.connection
        await turns()
        assert connection() is None
    finally:
        gc.enable()


async def test_flood_of_header_blocks_that_are_too_large_ends_the_connection(
    client: Client,
) -> None:
    bomb = b"\x90" * 1000
    for at in range(3, 203, 2):
        client.send(headers(at, "/a/Keep", block=bomb))
        await turns(2)
        if at == 21:
            assert not client.refusals
    assert [str(each) for each in client.refusals] == ["too many frames without data"]


GOAWAY = 7


def goodbyes(sent: bytes) -> list[tuple[int, int, bytes]]:
    """Return last stream, code and text of every GOAWAY."""
    found = []
    while sent:
        size, kind, payload = int.from_bytes(sent[:3]), sent[3], sent[9:]
        if kind == GOAWAY:
            numbers = int.from_bytes(payload[:4]), int.from_bytes(payload[4:8])
            found.append((*numbers, payload[8:size]))
        sent = payload[size:]
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have connections that are no longer read looked at in every turn of the event loop."""
    monkeypatch.setattr(connection_module, "_REFUSED_S", 0.0)
    monkeypatch.setattr(connection_module, "_HALF_CLOSED_S", 0.0)
    monkeypatch.setattr(connection_module, "_LEAVE_S", 0.0)


@pytest.mark.usefixtures("quick")
async def test_client_that_breaks_the_protocol_is_told_why_after_its_answers(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_REFUSED_CHECKS", 1000)
    client.reads.clear()
    client.send(headers(3, "/a/Keep") + message(3, b"x") + frame(PING, 0, 0, bytes(7)))
    [(last, code, text)] = goodbyes(client.transport.written)
    assert (last, code, text) == (3, 6, b"a frame of type 6 with 7 bytes")
    client.send(headers(5, "/a/Keep") + message(5, b"z"))  # which is not handled
    await turns()
    assert b"grpc-status" not in client.transport.written
    assert not client.transport.closed
    client.reads.set()
    await until(lambda: client.transport.closed)
    assert client.requests == [b"x"]
    assert client.transport.written.count(b"grpc-status") == 1


@pytest.mark.usefixtures("quick")
async def test_client_that_breaks_the_protocol_does_not_stay_for_a_call_that_hangs(
    client: Client,
) -> None:
    client.reads.clear()
    client.send(headers(3, "/a/Keep") + message(3, b"x") + frame(PING, 0, 0, bytes(7)))
    await until(lambda: client.transport.closed)


@pytest.mark.parametrize("sent", [b"", headers(3, "/a/Keep")])
async def test_client_that_closes_its_side_without_a_whole_request_is_gone(
    client: Client, sent: bytes
) -> None:
    client.send(sent)
    client.connection.eof_received()
    assert client.transport.closed


async def test_last_frame_of_a_connection_says_which_calls_were_handled(client: Client) -> None:
    client.connection.retire()
    client.send(message(1, b"x") + frame(PING, 1, 0, b"synergai"))
    await until(lambda: len(goodbyes(client.transport.written)) == 2)
    assert goodbyes(client.transport.written) == [((1 << 31) - 1, 0, b""), (1, 0, b"")]


@pytest.mark.parametrize("leave_s", [60.0, 0.001])
async def test_client_gets_time_to_close_behind_its_last_response(
    client: Client, monkeypatch: pytest.MonkeyPatch, leave_s: float
) -> None:
    monkeypatch.setattr(connection_module, "_LEAVE_S", leave_s)
    client.connection.retire()
    client.send(message(1, b"x") + frame(PING, 1, 0, b"synergai"))
    await until(lambda: len(goodbyes(client.transport.written)) == 2)
    if leave_s < 1.0:
        await until(lambda: client.transport.closed)
    else:
        assert not client.transport.closed


async def test_connection_without_recent_calls_is_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "_LEAVE_S", 0.0)
    client = Client()
    client.send(PREFACE + frame(SETTINGS, 0, 0))
    client.connection.end()
    assert client.transport.closed


@pytest.mark.parametrize("grace_s", [0.0, 0.001])
@pytest.mark.usefixtures("quick")
async def test_connection_is_retired_at_its_age_and_its_calls_get_the_grace(grace_s: float) -> None:
    client = Client(connection_age=(0.001, grace_s))
    client.reads.clear()
    client.send(PREFACE + frame(SETTINGS, 0, 0) + headers(1, "/a/Keep") + message(1, b"x"))
    await until(lambda: goodbyes(client.transport.written))
    if grace_s:
        await until(lambda: client.transport.closed)
        return
    assert not client.transport.closed
    client.reads.set()
    client.send(frame(PING, 1, 0, b"synergai"))
    await until(lambda: client.transport.closed)
    assert b"grpc-status" in client.transport.written
