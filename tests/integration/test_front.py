"""A gRPC server behind a front, with real sockets on loopback."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from synergai.errors import Unavailable
from synergai.protocol import rpc
from synergai.protocol.grpcio import front as front_module
from synergai.protocol.grpcio.front import Front, peer_address, peer_of
from synergai.protocol.grpcio.resilient_server import ResilientServer
from synergai.runtime.ports import bind
from tests import http2
from tests.calls import raw_unary

SIZE = 16 << 20


class Echo:
    """A server of ``/echo/Call`` behind a front with room for two connections.

    Attributes:
        address: address of the front.
        peers: names of the clients that have called.
    """

    def __init__(self) -> None:
        self.server = ResilientServer(
            lambda: grpc.aio.server(options=rpc.server_options()), lambda _: None, 2
        )
        self.address = self.server.bind("127.0.0.1:0")
        self.peers: list[str] = []

    async def call(self, request: bytes, context: Any) -> bytes:
        self.peers.append(context.peer())
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


def is_known(peer: str) -> bool:
    try:
        peer_of(peer)
    except Unavailable:
        return False
    return True


async def test_handlers_know_the_address_of_the_client(echo: Echo) -> None:
    with http2.Http2Connection(echo.address) as connection:
        host, port = connection.own_address
        connection.send([http2.headers(1, "/echo/Call") + http2.message(1, b"x")])
        async with asyncio.timeout(30):
            while not echo.peers:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.02)
    assert [peer_address(each) for each in echo.peers] == [f"ipv4:{host}:{port}"]


async def test_client_whose_connection_has_closed_is_unknown(echo: Echo) -> None:
    async with echo.channel() as channel:
        await raw_unary(channel, "/echo/Call")(b"x", timeout=30)
        assert peer_of(echo.peers[0]).is_local
    async with asyncio.timeout(30):
        while is_known(echo.peers[0]):  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.02)


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


class Behind:
    """A front whose server is this test.

    Attributes:
        front: the front, with room for one connection.
        client: the client's socket.
        server: the server's end of its connection.
    """

    def __init__(self, folder: Path) -> None:
        [listener] = bind("127.0.0.1:0", 1)
        self.front = Front([listener], 1)
        self.front.path = str(folder / "server")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.front.path)
        self._socket.listen()
        self._address = listener.getsockname()
        self.client: socket.socket
        self.server: socket.socket

    async def connect(self) -> None:
        self.front.start()
        self.client = socket.create_connection(self._address)
        self.client.sendall(http2.PREFACE)
        self.server = await asyncio.to_thread(lambda: self._socket.accept()[0])
        self.client.setblocking(False)
        self.server.setblocking(False)
        await asyncio.sleep(0.05)

    async def fill(self) -> int:
        """Let the server send until nobody reads; return how many bytes it has sent."""
        sent = idle = 0
        while idle < 20:
            try:
                sent, idle = sent + self.server.send(bytes(1 << 16)), 0
            except BlockingIOError:
                idle += 1
                await asyncio.sleep(0.01)
        return sent

    async def read(self) -> int:
        """Let the client read until its connection ends; return how many bytes."""
        read = 0
        while data := await asyncio.get_running_loop().sock_recv(self.client, 1 << 20):
            read += len(data)
        return read

    def close(self) -> None:
        self.front.close()
        for each in (self._socket, self.client, self.server):
            each.close()


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Behind]:
    behind = Behind(tmp_path)
    await behind.connect()
    yield behind
    behind.close()


async def test_what_the_server_sent_before_it_closed_reaches_the_client(behind: Behind) -> None:
    # The client sends first, so the front fails to pass that on before it has read the answer.
    behind.client.send(http2.frame(http2.PING, 0, 0, bytes(8)))
    behind.server.send(b"answer")
    behind.server.close()
    assert await asyncio.wait_for(behind.read(), 30) == len(b"answer")


async def test_draining_waits_for_a_client_that_reads_slowly(behind: Behind) -> None:
    sent = await behind.fill()
    behind.server.close()

    async def drain() -> None:
        await behind.front.drain()
        behind.front.close()

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(drain())
        await asyncio.sleep(0.05)
        assert await behind.read() == sent
