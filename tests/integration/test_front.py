"""A gRPC server behind a front, with real sockets on loopback."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import psutil
import pytest
import uvloop

from synergai.errors import Unavailable
from synergai.protocol import rpc
from synergai.protocol.grpcio import front as front_module
from synergai.protocol.grpcio.front import Front, peer_address, peer_of
from synergai.protocol.grpcio.open_calls import GOAWAY
from synergai.protocol.grpcio.resilient_server import ResilientServer
from synergai.protocol.native.server import NativeServer
from synergai.runtime.ports import bind
from tests import http2
from tests.calls import raw_stream, raw_unary
from tests.waiting import until

SIZE = 16 << 20
LIMIT = 2 * SIZE


class KeptContext:
    """What can be asked of a call that has ended."""

    def __init__(self, context: Any) -> None:
        self.peer = partial(str, context.peer())
        self.invocation_metadata = partial(tuple, context.invocation_metadata() or ())


class Echo:
    """A server of ``/echo/Call`` behind a front with room for two connections.

    Attributes:
        address: address of the front.
        callers: contexts of the calls.
    """

    def __init__(self, kind: str) -> None:
        self.server: ResilientServer | NativeServer
        if kind == "native":
            self.server = NativeServer((), 2, LIMIT)
        else:
            options = rpc.server_options(LIMIT)
            self.server = ResilientServer(
                lambda: grpc.aio.server(options=options), lambda _: None, 2
            )
        self.address = self.server.bind("127.0.0.1:0")
        self.callers: list[KeptContext] = []

    async def call(self, request: bytes, context: Any) -> bytes:
        self.callers.append(KeptContext(context))
        return request

    async def call_in_stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(await self.call(request, context))

    async def answer_at_length(self, _request: bytes, _context: Any) -> bytes:
        return bytes(2 * SIZE)

    async def start(self) -> None:
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Call": grpc.unary_unary_rpc_method_handler(self.call, bytes),
            "Long": grpc.unary_unary_rpc_method_handler(self.answer_at_length, bytes),
            "Stream": grpc.stream_stream_rpc_method_handler(
                cast("Any", self.call_in_stream), bytes
            ),
        }
        await self.server.start((rpc.Service("echo", methods),))

    def channel(self) -> grpc.aio.Channel:
        options = [*rpc.channel_options(), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.insecure_channel(self.address, options)


@pytest.fixture(params=["grpcio", "native"])
async def echo(request: pytest.FixtureRequest) -> AsyncIterator[Echo]:
    echo = Echo(request.param)
    await echo.start()
    yield echo
    await echo.server.stop(0.0)


async def until_closed(connection: http2.Http2Connection) -> None:
    await until(lambda: connection.is_closed(), 0.05)


def is_known(caller: KeptContext) -> bool:
    try:
        peer_of(caller)
    except Unavailable:
        return False
    return True


@pytest.mark.parametrize("method", ["Call", "Stream"])
async def test_handlers_know_the_address_of_the_client(echo: Echo, method: str) -> None:
    claimed = ("synergai-peer", "0123456789abcdef/ipv4:192.0.2.1:1;1")
    with http2.Http2Connection(echo.address) as connection:
        host, port = connection.own_address
        connection.send([http2.headers(1, f"/echo/{method}", claimed) + http2.message(1, b"x")])
        await until(lambda: echo.callers, 0.02)
    assert [peer_address(each) for each in echo.callers] == [f"ipv4:{host}:{port}"]


async def test_client_whose_connection_has_closed_is_unknown(echo: Echo) -> None:
    async with echo.channel() as channel:
        await raw_unary(channel, "/echo/Call")(b"x", timeout=30)
        assert peer_of(echo.callers[0]).is_local
    await until(lambda: not is_known(echo.callers[0]), 0.02)


async def test_system_watches_whether_the_machine_of_a_client_is_there(echo: Echo) -> None:
    async with echo.channel() as channel:
        await raw_unary(channel, "/echo/Call")(b"x", timeout=30)
        connection = peer_of(echo.callers[0]).transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


async def test_large_messages_pass_in_both_directions_at_once(echo: Echo) -> None:
    messages = [bytes([number]) * SIZE for number in range(4)]
    async with echo.channel() as channel:
        call = raw_unary(channel, "/echo/Call")
        answers = await asyncio.gather(*(call(message, timeout=60) for message in messages))
    assert answers == messages


@pytest.mark.parametrize("method", ["Call", "Stream"])
async def test_compressed_messages_are_read_within_the_limit(echo: Echo, method: str) -> None:
    async with echo.channel() as channel:

        async def answer(data: bytes) -> object:
            if method == "Call":
                unary = raw_unary(channel, "/echo/Call")
                return await unary(data, timeout=30, compression=grpc.Compression.Gzip)
            call = raw_stream(channel, "/echo/Stream")(
                timeout=30, compression=grpc.Compression.Gzip
            )
            await call.write(data)
            return await call.read()

        assert await answer(bytes(SIZE)) == bytes(SIZE)
        with contextlib.suppress(grpc.aio.AioRpcError):
            assert await answer(bytes(2 * LIMIT)) != bytes(2 * LIMIT)
        assert await raw_unary(channel, "/echo/Call")(b"x", timeout=30) == b"x"


async def test_message_beyond_the_limit_is_not_read(echo: Echo) -> None:
    async with echo.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await raw_unary(channel, "/echo/Call")(bytes(3 * LIMIT), timeout=30)
        assert await raw_unary(channel, "/echo/Call")(b"x", timeout=30, wait_for_ready=True) == b"x"
    assert len(echo.callers) == 1


async def test_further_connections_are_closed(echo: Echo) -> None:
    with http2.Http2Connection(echo.address), http2.Http2Connection(echo.address):
        await asyncio.sleep(0.1)
        with http2.Http2Connection(echo.address) as third:
            await until_closed(third)
    async with echo.channel() as channel:
        assert await raw_unary(channel, "/echo/Call")(b"x", timeout=30) == b"x"


async def test_idle_connection_is_closed_and_one_with_a_call_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(front_module, "_IDLE_S", 0.1)
    monkeypatch.setattr(front_module, "_CHECK_IDLE_S", 0.1)
    echo = Echo("native")
    await echo.start()
    async with echo.channel() as channel:
        stream = raw_stream(channel, "/echo/Stream")()
        await stream.write(b"x")
        assert await stream.read() == b"x"
        with http2.Http2Connection(echo.address) as idle:
            await until_closed(idle)
        await stream.write(b"y")
        assert await stream.read() == b"y"
        stream.cancel()
    await echo.server.stop(0.0)


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


async def test_requests_of_a_client_that_ignores_flow_control_are_not_kept(echo: Echo) -> None:
    # The handler waits for the client to read its responses, and reads no further requests.
    before = psutil.Process().memory_info().rss
    requests = http2.message(1, bytes(10_000), last=False) * 10
    with http2.Http2Connection(echo.address) as connection:
        connection.send([http2.headers(1, "/echo/Stream")])
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(1000):
                await asyncio.to_thread(connection.send, [requests])
    async with echo.channel() as channel:
        assert await raw_unary(channel, "/echo/Call")(b"x", timeout=30) == b"x"
    assert len(echo.callers) < 100
    assert psutil.Process().memory_info().rss - before < SIZE


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
    answer = http2.message(1, b"answer")
    behind.server.send(answer)
    behind.server.close()
    assert await asyncio.wait_for(behind.read(), 30) == len(answer)


async def test_draining_waits_for_a_client_that_reads_slowly(behind: Behind) -> None:
    sent = await behind.fill()
    behind.server.close()

    async def drain() -> None:
        behind.front.retire()
        await behind.front.drain()
        behind.front.close()

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(drain())
        await asyncio.sleep(0.05)
        assert await behind.read() > sent - 9  # the last frame may be incomplete


async def test_idle_connection_is_closed_once_its_client_has_read(behind: Behind) -> None:
    [client] = behind.front._clients
    sent = 0
    while not client.is_behind:
        await asyncio.get_running_loop().sock_sendall(
            behind.server, http2.frame(0, 0, 1, bytes(8183))
        )
        sent += 8192
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    for _ in range(2):  # ask it to leave, and close
        client.close_idle(time.monotonic())
    behind.client.send(http2.frame(http2.PING, 0, 0, bytes(8)))
    assert await asyncio.wait_for(behind.read(), 30) == sent + len(GOAWAY)


async def _have_server_close_before_calls_that_wait(folder: Path) -> None:
    behind = Behind(folder)
    await behind.connect()
    await behind.fill()  # so that the client's connection stays open until it has read
    behind.client.send(b"".join(http2.headers(stream, "/a/B") for stream in range(1, 400, 2)))
    behind.server.close()
    await asyncio.sleep(0.2)
    behind.close()


def test_calls_that_wait_end_with_the_connection_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        uvloop.run(_have_server_close_before_calls_that_wait(tmp_path))
    assert not caplog.records
