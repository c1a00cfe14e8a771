"""A gRPC server behind a front, with real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from synergai.protocol import front as front_module
from synergai.protocol import rpc
from synergai.protocol.front import peer_address
from synergai.protocol.resilient_server import ResilientServer
from tests import http2
from tests.calls import raw_unary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SIZE = 16 << 20


class Echo:
    """A server of ``/echo/Call`` behind a front with room for two connections.

    Attributes:
        address: address of the front.
        peers: addresses of the clients that have called.
    """

    def __init__(self) -> None:
        self.server = ResilientServer(
            lambda: grpc.aio.server(options=rpc.server_options()), lambda _: None, fronted=2
        )
        self.address = self.server.bind("127.0.0.1:0")
        self.peers: list[str] = []

    async def call(self, request: bytes, context: Any) -> bytes:
        self.peers.append(peer_address(context.peer()))
        return request

    async def answer_at_length(self, _request: bytes, _context: Any) -> bytes:
        return bytes(2 * SIZE)

    async def start(self) -> None:
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Call": grpc.unary_unary_rpc_method_handler(self.call),
            "Long": grpc.unary_unary_rpc_method_handler(self.answer_at_length),
        }
        await self.server.start((grpc.method_handlers_generic_handler("echo", methods),))

    def channel(self) -> grpc.aio.Channel:
        options = [*rpc.channel_options(), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.insecure_channel(self.address, options)


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    await echo.start()
    yield echo
    await echo.server.stop(0.0)


async def until_closed(connection: http2.Http2Connection) -> None:
    async with asyncio.timeout(30):
        while not connection.is_closed():  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.05)


async def test_handlers_know_the_address_of_the_client(echo: Echo) -> None:
    with http2.Http2Connection(echo.address) as connection:
        host, port = connection.own_address
        connection.send([http2.headers(1, "/echo/Call") + http2.message(1, b"x")])
        async with asyncio.timeout(30):
            while not echo.peers:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.02)
    assert echo.peers == [f"ipv4:{host}:{port}"]


async def test_large_messages_pass_in_both_directions_at_once(echo: Echo) -> None:
    messages = [bytes([number]) * SIZE for number in range(4)]
    async with echo.channel() as channel:
        call = raw_unary(channel, "/echo/Call")
        answers = await asyncio.gather(*(call(message, timeout=60) for message in messages))
    assert answers == messages


async def test_further_connections_are_closed(echo: Echo) -> None:
    with http2.Http2Connection(echo.address), http2.Http2Connection(echo.address):
        await asyncio.sleep(0.1)
        with http2.Http2Connection(echo.address) as third:
            await until_closed(third)
    async with echo.channel() as channel:
        assert await raw_unary(channel, "/echo/Call")(b"x", timeout=30) == b"x"


async def test_connections_of_clients_that_read_nothing_are_closed(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "_UNREAD_S", 0.2)
    window = 4 * SIZE
    with (
        http2.Http2Connection(echo.address, window) as first,
        http2.Http2Connection(echo.address, window) as second,
    ):
        widen = http2.frame(http2.WINDOW_UPDATE, 0, 0, window.to_bytes(4, "big"))
        for each in (first, second):
            each.send([widen, http2.headers(1, "/echo/Long") + http2.message(1, b"x")])
        async with echo.channel() as channel:
            call = raw_unary(channel, "/echo/Call")
            assert await call(b"x", timeout=30, wait_for_ready=True) == b"x"


async def test_silent_connection_is_closed(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "_SILENT_S", 0.05)
    host, _, port = echo.address.rpartition(":")
    with socket.create_connection((host, int(port))) as silent:
        silent.setblocking(False)
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(silent, 1), 30) == b""
