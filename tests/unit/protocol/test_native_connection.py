"""Connections of clients, whose bytes arrive in any parts."""

import asyncio
import random
import tracemalloc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from synergai.protocol import rpc
from synergai.protocol.native.call_turns import CallTurns
from synergai.protocol.native.connection import ClientConnection
from synergai.protocol.native.frame_limits import CREDIT
from synergai.protocol.native.handlers import Handlers
from synergai.protocol.native.messages import MOST_CUT, prefixed
from tests.http2 import DATA, END_STREAM, PING, PREFACE, SETTINGS, frame, headers
from tests.waiting import turns

MAX_BYTES = 1 << 22


class Transport(asyncio.Transport):
    """A transport that drops what is written, and delivers something although it is paused."""

    def write(self, data: Any) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        pass


class Client:
    """A client of ``/a/Keep``, which keeps its requests.

    Attributes:
        requests: these requests.
        reads: whether the handler reads them.
        placed: bytes that were not received into the memory of all connections.
        place: the other memory into which bytes were received last.
        handlers: the server's.
        refusals: why the connection was refused.
    """

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.placed = 0
        self.place: weakref.ref[Any] | None = None
        self.handlers = handlers = Handlers(MAX_BYTES)
        methods: dict[str, Any] = {"Keep": grpc.stream_unary_rpc_method_handler(self._keep, bytes)}
        handlers.add((rpc.Service("a", methods),))
        self.refusals: list[Exception] = []
        self._received = handlers.received
        self.connection = ClientConnection(
            handlers, CallTurns(), lambda _, fault: self.refusals.append(fault), lambda _: None
        )
        self.connection.opening = asyncio.create_task(asyncio.sleep(0))
        self.connection.connection_made(Transport({"peername": ("192.0.2.0", 80)}))

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
    """Return data of a call in frames of any sizes."""
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


@pytest.mark.parametrize("seed", range(30))
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
