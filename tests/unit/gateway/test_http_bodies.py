"""Limits on request bodies: size, memory, compression."""

import asyncio
import gzip
import zlib

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from gateway.calls.http.bodies import Bodies
from synergai.errors import DeadlineExceeded, InvalidInput, Overloaded

MAX = 1000
PACKED = gzip.compress(b"abc", mtime=0)


class Sender:
    """A client that sends a body in parts; counts those that were received."""

    def __init__(self, *parts: bytes, disconnects: bool = False) -> None:
        self._messages: list[Message] = [
            {"type": "http.request", "body": part, "more_body": True} for part in parts
        ]
        if disconnects:
            self._messages.append({"type": "http.disconnect"})
        else:
            self._messages[-1]["more_body"] = False
        self.received = 0

    async def receive(self) -> Message:
        self.received += 1
        return self._messages[self.received - 1]

    def request(self, **headers: str) -> Request:
        encoded = [(n.replace("_", "-").encode(), v.encode()) for n, v in headers.items()]
        return Request({"type": "http", "method": "POST", "headers": encoded}, self.receive)


async def received(bodies: Bodies, request: Request) -> bytes:
    async with bodies.receive(request) as body:
        assert bodies.held_bytes >= len(body)
        return body


async def status(bodies: Bodies, request: Request) -> int:
    with pytest.raises(HTTPException) as caught:
        await received(bodies, request)
    assert bodies.held_bytes == 0
    return caught.value.status_code


@pytest.fixture
def bodies() -> Bodies:
    return Bodies(MAX, 2 * MAX)


async def test_announced_large_body_is_refused_before_it_is_received(bodies: Bodies) -> None:
    sender = Sender(b"x")
    assert await status(bodies, sender.request(content_length=str(MAX + 1))) == 413
    assert sender.received == 0


async def test_chunked_body_is_refused_at_the_limit(bodies: Bodies) -> None:
    sender = Sender(*[b"x" * 400] * 10)
    assert await status(bodies, sender.request()) == 413
    assert sender.received == 3


async def test_body_is_refused_while_others_fill_the_memory(bodies: Bodies) -> None:
    large = Sender(b"x" * MAX)
    async with bodies.receive(large.request()), bodies.receive(Sender(b"x" * 500).request()):
        with pytest.raises(Overloaded):
            await received(bodies, Sender(b"x" * 501).request(content_length="501"))
        await received(bodies, Sender(b"x" * 500).request(content_length="500"))
    assert bodies.held_bytes == 0


async def test_announced_length_takes_no_room_before_the_bytes_arrive(bodies: Bodies) -> None:
    held: list[int] = []

    class Slow(Sender):
        async def receive(self) -> Message:
            held.append(bodies.held_bytes)
            return await super().receive()

    sender = Slow(b"x", b"x" * (MAX - 1))
    async with bodies.receive(sender.request(content_length=str(MAX))):
        assert bodies.held_bytes == MAX
    assert held == [0, 1]


async def test_deadline_that_passes_within_a_tick_of_the_clock_is_exceeded(
    bodies: Bodies, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    last_tick = loop.time() - 1e-3

    class Waiting(Sender):
        async def receive(self) -> Message:
            # uvloop's clock ticks in milliseconds.
            monkeypatch.setattr(loop, "time", lambda: last_tick)
            await asyncio.Event().wait()
            raise AssertionError("nothing sets the event")

    with pytest.raises(DeadlineExceeded):
        async with bodies.receive(Waiting(b"x").request(), 0.0):
            pass


async def test_lost_client_ends_the_body(bodies: Bodies) -> None:
    with pytest.raises(ClientDisconnect):
        await received(bodies, Sender(b"x", disconnects=True).request(content_length="2"))
    assert bodies.held_bytes == 0


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), (" GZIP ", gzip.compress)],
)
@pytest.mark.parametrize("size", [0, 1, MAX])
async def test_compressed_body_is_decompressed(
    bodies: Bodies, encoding: str, compress: type, size: int
) -> None:
    content = b"x" * size
    sender = Sender(compress(content))
    assert await received(bodies, sender.request(content_encoding=encoding)) == content


async def test_compressed_body_has_the_same_limit(bodies: Bodies) -> None:
    bomb = gzip.compress(bytes(MAX + 1))
    assert await status(bodies, Sender(bomb).request(content_encoding="gzip")) == 413
    bomb = zlib.compress(bytes(500_000))
    assert len(bomb) < MAX
    assert await status(bodies, Sender(bomb).request(content_encoding="deflate")) == 413


@pytest.mark.parametrize(
    "data",
    [b"", b"abc", PACKED[:-1], PACKED + b"x", zlib.compress(b"abc")],
)
async def test_damaged_compression_is_invalid_input(bodies: Bodies, data: bytes) -> None:
    with pytest.raises(InvalidInput, match="compressed body"):
        await received(bodies, Sender(data).request(content_encoding="gzip"))
    assert bodies.held_bytes == 0


async def test_unknown_encoding_is_refused(bodies: Bodies) -> None:
    assert await status(bodies, Sender(b"x").request(content_encoding="br")) == 415
    assert await status(bodies, Sender(b"x").request(content_encoding="gzip, gzip")) == 415
