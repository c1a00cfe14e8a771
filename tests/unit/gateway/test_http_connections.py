"""Refusal of heads on a connection with requests in progress."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.http.connections import MAX_HEAD_BYTES, LimitedConnection
from synergai.protocol.unread import UnreadResponses

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
        config = uvicorn.Config(self._app, log_config=None, lifespan="off", interface="asgi3")
        config.load()
        self.connection = LimitedConnection(
            UnreadResponses(), config=config, server_state=ServerState(), app_state={}
        )
        self.connection.connection_made(self.transport)

    async def _app(self, _: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
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
    assert client.transport.close.called


async def test_damaged_body_is_refused_at_once(client: Client) -> None:
    head = b"POST /1 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    client.send(head, b"not a size\r\n")
    assert client.statuses() == [400]
    assert client.transport.close.called


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
