"""What grpcio's server does as the native one, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import grpc
import pytest

from gateway.server import Gateway
from synergai.errors import SynergaiError, Unavailable
from synergai.wire import rpc
from synergai.wire.grpcio_server import GrpcioServer
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES
from synergai.wire.server_call import ServerCall
from tests import http2
from tests.calls import raw_stream
from tests.integration.gateway.conftest import config_in
from tests.waiting import until

MOST_CONNECTIONS = 4


async def echo_all(
    requests: AsyncIterator[bytes], context: ServerCall
) -> AsyncGenerator[bytes, None]:
    async for request in requests:
        yield request + context.peer.host.encode()


@pytest.fixture
def broken() -> list[SynergaiError]:
    return []


@pytest.fixture
async def server(broken: list[SynergaiError]) -> AsyncIterator[GrpcioServer]:
    server = GrpcioServer(MOST_CONNECTIONS, DEFAULT_MAX_MESSAGE_BYTES, broken.append)
    yield server
    await server.stop(0.0)


@pytest.fixture
async def address(server: GrpcioServer) -> str:
    address = server.bind("127.0.0.1:0")
    server.start([rpc.Service("test", {"Echo": rpc.bytes_stream(echo_all)})])
    return address


async def test_server_that_is_stopped_at_once_ends_quietly(
    server: GrpcioServer, address: str, broken: list[SynergaiError]
) -> None:
    server.retire()
    await server.stop(1.0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address.split(":"))
    assert broken == []


async def test_calls_of_a_retired_server_go_on_and_new_ones_are_refused(
    server: GrpcioServer, address: str
) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.insecure_channel(address, options) as old,
        grpc.aio.insecure_channel(address, options) as new,
    ):
        call = raw_stream(old, "/test/Echo")(timeout=30)
        await call.write(b"1 ")
        assert await call.read() == b"1 127.0.0.1"
        server.retire()
        late = raw_stream(new, "/test/Echo")(iter([b"x"]), timeout=30)
        assert await late.code() is grpc.StatusCode.UNAVAILABLE
        await call.write(b"2 ")
        assert await call.read() == b"2 127.0.0.1"
        stopping = asyncio.create_task(server.stop(30.0))
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await stopping


async def test_connections_beyond_the_limit_are_closed(address: str) -> None:
    connections = [await asyncio.open_connection(*address.split(":")) for _ in range(10)]
    try:
        closed = [asyncio.create_task(reader.read()) for reader, _ in connections]
        await until(lambda: sum(each.done() for each in closed) >= 10 - MOST_CONNECTIONS, 0.02)
    finally:
        for _, writer in connections:
            writer.close()
    await asyncio.gather(*closed, return_exceptions=True)


def send_path_that_is_not_utf8(address: str) -> None:
    with http2.Http2Connection(address) as connection:
        connection.send([http2.headers(1, "/\udcff")])
        while connection.read():
            pass


async def test_gateway_whose_server_has_broken_stops_with_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Gateway(config_in(tmp_path, grpc_server="grpcio")) as gateway:
        sending = asyncio.to_thread(send_path_that_is_not_utf8, gateway.address)
        async with asyncio.timeout(30):
            _, error = await asyncio.gather(sending, gateway.wait_stopped(), return_exceptions=True)
    assert isinstance(error, Unavailable)
    assert str(error) == f"grpcio accepts no more calls on {gateway.address}"
    assert "critical" in caplog.text.lower()
