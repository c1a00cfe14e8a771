"""Limits on request bodies: size, memory, compression."""

import asyncio
import gc
import gzip
import json
import weakref
import zlib
from collections.abc import AsyncGenerator
from importlib.resources import files
from typing import Any, cast
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.calls.http.bodies import Bodies
from gateway.calls.http.connections import IDLE_S, LINGER_S, MAX_HEAD_BYTES, LimitedConnection
from gateway.calls.http.fleet_page import FleetFeed, fleet_page_routes
from gateway.calls.http.monitoring import monitoring_routes
from gateway.calls.http.rest import UNSUPPORTED, RestCalls
from gateway.calls.servicers.engines import EngineCalls
from gateway.calls.servicers.inference import InferenceCalls
from synergai.errors import DeadlineExceeded, InvalidInput, Overloaded
from synergai.wire.memory_bounds import UnreadResponses

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


POST = b"POST /%d HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
HALF_A_HEAD = b"GET /2 HTTP/1.1\r\nhost: a\r\nx-filler: "
NOT_HTTP = b"no such thing\r\n\r\n"


class Client:
    """A client of an application that reads bodies and responds when it is told to."""

    def __init__(self) -> None:
        self.respond = asyncio.Event()
        self.transport = Mock(spec=asyncio.Transport)
        self.transport.is_closing.side_effect = lambda: self.transport.close.called
        self.transport.get_write_buffer_size.return_value = 0
        self.transport.get_extra_info.return_value = None
        config = uvicorn.Config(
            self._app, log_config=None, lifespan="off", interface="asgi3", timeout_keep_alive=75
        )
        config.load()
        self.connection = LimitedConnection(
            UnreadResponses(), config=config, server_state=ServerState(), app_state={}
        )
        self.connection.connection_made(self.transport)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        while scope["path"] != "/refused" and (await receive()).get("more_body", False):
            pass
        await self.respond.wait()
        start = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"0")],
        }
        await send(start)
        await send({"type": "http.response.body", "body": b""})

    def send(self, *chunks: bytes) -> None:
        for chunk in chunks:
            self.connection.data_received(chunk)

    async def responses(self) -> list[int]:
        """Let the application respond; return the status of each response."""
        self.respond.set()
        await asyncio.gather(*set(self.connection.tasks))
        return self.statuses()

    def until_end_s(self) -> float:
        """Return when the connection is closed if the client sends nothing more."""
        idle = self.connection._idle
        assert idle is not None
        return idle.when() - asyncio.get_running_loop().time()

    @property
    def is_told_the_end(self) -> bool:
        """Whether nothing more is sent to the client."""
        return bool(self.transport.close.called or self.transport.write_eof.called)

    def statuses(self) -> list[int]:
        sent = b"".join(call.args[0] for call in self.transport.write.call_args_list)
        return [int(part[:3]) for part in sent.split(b"HTTP/1.1 ")[1:]]


@pytest.fixture
async def client() -> AsyncGenerator[Client]:
    found = Client()
    yield found
    found.connection.connection_lost(None)


async def test_body_does_not_count_as_part_of_the_next_head(client: Client) -> None:
    size = 3 * MAX_HEAD_BYTES
    client.send(POST % (1, size) + bytes(size) + HALF_A_HEAD)
    assert await client.responses() == [200]
    client.send(b"\r\n\r\n")
    assert await client.responses() == [200, 200]
    assert not client.transport.close.called


@pytest.mark.parametrize(
    ("refused", "status"), [([HALF_A_HEAD, bytes(MAX_HEAD_BYTES + 1)], 431), ([NOT_HTTP], 400)]
)
async def test_refused_head_does_not_take_the_place_of_a_response(
    client: Client, refused: list[bytes], status: int
) -> None:
    filler = [part.replace(b"\0", b"x") for part in refused]
    client.send(POST % (1, 1) + b"x", *filler, b"more")
    assert client.statuses() == []
    assert await client.responses() == [200, status]
    assert client.is_told_the_end


async def test_damaged_body_is_refused_at_once(client: Client) -> None:
    head = b"POST /1 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    client.send(head, b"not a size\r\n")
    assert client.statuses() == [400]
    assert client.is_told_the_end


async def test_damaged_body_of_a_queued_request_is_refused_after_the_response(
    client: Client,
) -> None:
    head = b"POST /2 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    client.send(POST % (1, 1) + b"x", head, b"not a size\r\n")
    assert client.statuses() == []
    assert await client.responses() == [200, 400]


@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
async def test_lost_connection_takes_no_memory_while_it_could_have_stayed_open(
    error: Exception | None,
) -> None:
    client = Client()
    client.send(POST % (1, 0))
    assert await client.responses() == [200]
    client.connection.connection_lost(error)
    connection = weakref.ref(client.connection)
    del client
    gc.collect()
    assert connection() is None


REFUSED = b"POST /refused HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"


async def test_rest_of_a_refused_body_is_dropped_while_the_client_reads(client: Client) -> None:
    client.send(REFUSED % 1000 + b"x")
    assert await client.responses() == [200]
    transport = client.transport
    assert (transport.write_eof.called, transport.close.called) == (True, False)
    client.send(bytes(998), b"x" + POST % (1, 0))
    assert client.statuses() == [200]
    assert not transport.close.called
    assert client.until_end_s() <= LINGER_S


async def test_connection_is_closed_at_once_if_nothing_follows(client: Client) -> None:
    client.send(REFUSED % 1 + b"x")
    assert await client.responses() == [200]
    assert client.transport.close.called


async def test_encrypted_connection_that_cannot_be_half_closed_lingers_as_well(
    client: Client,
) -> None:
    client.transport.can_write_eof.return_value = False
    client.send(REFUSED % 1000)
    assert await client.responses() == [200]
    assert not client.is_told_the_end
    assert client.connection.transport.is_closing()


async def test_idle_connection_stays_open_but_not_one_with_part_of_a_head(client: Client) -> None:
    client.send(POST % (1, 0))
    assert await client.responses() == [200]
    assert IDLE_S < 70 < client.until_end_s() <= 75
    client.send(b"\r\n")
    assert client.until_end_s() <= 75
    client.send(HALF_A_HEAD)
    assert client.until_end_s() <= IDLE_S


DOCUMENT: dict[str, Any] = json.loads(
    files("gateway.calls.http").joinpath("openapi.json").read_text()
)


async def render(_accepted: str) -> tuple[bytes, str]:
    return b"", ""


def routes() -> list[Route]:
    calls, engines = cast("InferenceCalls", None), cast("EngineCalls", None)
    every = [
        *RestCalls(calls, engines, Bodies(1, 1)).routes(),
        *monitoring_routes("", render, lambda: True, lambda: True, lambda: "", list),
        *fleet_page_routes(cast("FleetFeed", None), cast("Any", None)),
    ]
    return [route for route in every if isinstance(route, Route)]


def test_document_has_every_route_with_its_method() -> None:
    served = {
        (route.path, method.lower())
        for route in routes()
        for method in (route.methods or set()) - {"HEAD"}
        if route.path not in UNSUPPORTED and route.path != "/v2/"
    }
    described = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}
    assert described == served
