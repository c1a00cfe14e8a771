"""The native server, with real sockets on loopback."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import psutil
import pytest

from synergai.wire import rpc
from synergai.wire.native import connection as connection_module
from synergai.wire.native import server as server_module
from synergai.wire.native.server import NativeServer
from synergai.wire.server_call import SocketPeer
from tests import http2
from tests.calls import raw_stream, raw_unary
from tests.waiting import until

SIZE = 16 << 20
LIMIT = 2 * SIZE


class Echo:
    """A server of ``/echo/Call`` with room for two connections."""

    def __init__(self, server: NativeServer | None = None) -> None:
        self.server = server or NativeServer(2, LIMIT)
        self.address = self.server.bind("127.0.0.1:0")
        self.callers: list[SocketPeer] = []

    async def call(self, request: bytes, context: Any) -> bytes:
        self.callers.append(context.peer)
        return request

    async def call_in_stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(await self.call(request, context))

    async def answer_at_length(self, _request: bytes, _context: Any) -> bytes:
        return bytes(2 * SIZE)

    def start(self) -> None:
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Call": grpc.unary_unary_rpc_method_handler(self.call, bytes),
            "Long": grpc.unary_unary_rpc_method_handler(self.answer_at_length, bytes),
            "Stream": grpc.stream_stream_rpc_method_handler(
                cast("Any", self.call_in_stream), bytes
            ),
        }
        self.server.start((rpc.Service("echo", methods),))

    def channel(self) -> grpc.aio.Channel:
        options = [*rpc.channel_options(), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.insecure_channel(self.address, options)


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    echo.start()
    yield echo
    await echo.server.stop(0.0)


async def until_closed(connection: http2.Http2Connection) -> None:
    await until(lambda: connection.is_closed(), 0.05)


@pytest.mark.parametrize("method", ["Call", "Stream"])
async def test_handlers_know_the_address_of_the_client(echo: Echo, method: str) -> None:
    claimed = ("synergai-peer", "0123456789abcdef/ipv4:192.0.2.1:1;1")
    with http2.Http2Connection(echo.address) as connection:
        host, port = connection.own_address
        connection.send([http2.headers(1, f"/echo/{method}", claimed) + http2.message(1, b"x")])
        await until(lambda: echo.callers, 0.02)
    assert [each.address for each in echo.callers] == [f"ipv4:{host}:{port}"]


async def test_system_watches_whether_the_machine_of_a_client_is_there(echo: Echo) -> None:
    async with echo.channel() as channel:
        await raw_unary(channel, "/echo/Call")(b"x", timeout=30)
        connection = echo.callers[0].transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


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


async def test_idle_connection_is_closed_and_one_with_a_call_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "_IDLE_S", 0.1)
    monkeypatch.setattr(server_module, "_CHECK_IDLE_S", 0.1)
    echo = Echo()
    echo.start()
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
    monkeypatch.setattr(server_module, "UNREAD_S", 0.2)
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


@pytest.mark.parametrize("ends", ["server", "connection"])
async def test_client_that_is_behind_gets_time_to_read_before_its_connection_ends(
    echo: Echo, ends: str
) -> None:
    window = 4 * SIZE
    widen = http2.frame(http2.WINDOW_UPDATE, 0, 0, window.to_bytes(4, "big"))
    with http2.Http2Connection(echo.address, window) as slow:
        slow.send([widen, http2.headers(1, "/echo/Long") + http2.message(1, b"x")])
        await until(lambda: any(each.is_behind for each in echo.server._clients), 0.02)
        [client] = echo.server._clients
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            if ends == "server":
                tasks.create_task(echo.server.stop(0.0))
            else:
                for _ in range(2):  # as idle: it is asked to leave, and closed
                    client.close_idle(time.monotonic())
            await asyncio.sleep(0.05)
            assert len(await asyncio.to_thread(slow.read)) > 2 * SIZE


async def test_ping_is_answered_before_most_of_a_long_response(echo: Echo) -> None:
    window, ping = 4 * SIZE, b"slowlink"
    widen = http2.frame(http2.WINDOW_UPDATE, 0, 0, window.to_bytes(4, "big"))
    with http2.Http2Connection(echo.address, window) as slow:
        slow.send([widen, http2.headers(1, "/echo/Long") + http2.message(1, b"x")])
        await until(lambda: any(each.is_behind for each in echo.server._clients), 0.02)
        slow.send([http2.frame(http2.PING, 0, 0, ping)])
        received = await asyncio.to_thread(slow.read)
    assert received.index(ping) < SIZE // 4


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


async def test_connection_is_closed_at_its_age_and_its_call_after_the_grace() -> None:
    server = NativeServer(2, LIMIT, max_connection_age_s=0.05, max_connection_age_grace_s=0.1)
    echo = Echo(server)
    echo.start()
    try:
        async with echo.channel() as channel:
            call = raw_stream(channel, "/echo/Stream")()
            await call.write(b"x")
            assert await call.read() == b"x"
            assert await asyncio.wait_for(call.code(), 30) is grpc.StatusCode.UNAVAILABLE
            answer = raw_unary(channel, "/echo/Call")
            assert await answer(b"y", timeout=30, wait_for_ready=True) == b"y"
    finally:
        await server.stop(0.0)


async def test_silent_connection_is_closed(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENT_S", 0.05)
    host, _, port = echo.address.rpartition(":")
    with socket.create_connection((host, int(port))) as silent:
        silent.setblocking(False)
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(silent, 1), 30) == b""


async def test_client_that_is_accepted_in_the_turn_of_the_stop_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    echo = Echo()
    echo.start()
    stopping: list[asyncio.Task[None]] = []

    def stop(_connection: socket.socket) -> None:
        # Runs before the first step of the task that makes the connection.
        asyncio.get_running_loop().call_soon(
            lambda: stopping.append(asyncio.create_task(echo.server.stop(1000.0)))
        )

    monkeypatch.setattr(server_module, "_watch", stop)
    with http2.Http2Connection(echo.address) as connection:
        await until_closed(connection)
        await asyncio.wait_for(stopping[0], 60)
    assert not echo.server._clients


@pytest.mark.parametrize("closes", [False, True])
async def test_client_that_closes_its_side_is_answered_or_found_gone(
    echo: Echo, *, closes: bool
) -> None:
    ended: list[bool] = []
    answer = asyncio.Event()

    async def call(request: bytes, context: Any) -> bytes:
        echo.callers.append(context.peer)
        try:
            await answer.wait()
        except asyncio.CancelledError:
            ended.append(True)
            raise
        return request

    methods: dict[str, Any] = {"Wait": grpc.unary_unary_rpc_method_handler(call, bytes)}
    echo.server.handlers.add((rpc.Service("wait", methods),))
    host, _, port = echo.address.rpartition(":")
    sent = http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0)
    sent += http2.headers(1, "/wait/Wait") + http2.message(1, b"x")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(sent)
        await until(lambda: echo.callers, 0.02)
        if closes:
            connection.close()
            await until(lambda: ended, 0.02)
            return
        connection.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.5)
        answer.set()
        received = b""
        while data := await asyncio.to_thread(connection.recv, 1 << 16):
            received += data
    assert b"grpc-status" in received
    assert not ended
