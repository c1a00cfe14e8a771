"""Ends of connections: refused heads, and responses while a body still arrives."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.calls.http.connections import IDLE_S, LINGER_S, MAX_HEAD_BYTES, LimitedConnection
from synergai.wire.memory_bounds import UnreadResponses

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
