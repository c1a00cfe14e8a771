"""A port stays reserved for the servers of one process, with real sockets on loopback."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from typing import TYPE_CHECKING, Final

import grpc
import pytest

from synergai.errors import InternalError, Unavailable
from synergai.protocol import rpc
from synergai.protocol.grpcio.port_guard import PortGuard
from synergai.protocol.grpcio.resilient_server import ResilientServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

IP_LOCAL_PORT_RANGE: Final = 51
"""Of linux/in.h: ports that a socket without one of its own may get, since Linux 6.3."""


@pytest.fixture
async def guard() -> AsyncIterator[PortGuard]:
    """Return the guard of a port that a server has used."""
    guard = PortGuard("127.0.0.1:0")
    await serve_once(guard)
    yield guard
    guard.close()


async def serve_once(guard: PortGuard) -> None:
    """Run a server on a guarded port for a moment."""
    server = make_server()
    async with asyncio.timeout(30):
        while not bind(server, guard):  # noqa: ASYNC110 - polls the system
            await asyncio.sleep(0.05)
    await server.start()
    async with grpc.aio.insecure_channel(guard.address) as channel:
        await channel.channel_ready()
    await server.stop(None)


def bind(server: grpc.aio.Server, guard: PortGuard) -> bool:
    """Return whether a server could bind; gRPC closes ports a moment after a server has stopped."""
    try:
        with guard.opened():
            return rpc.bind(server, guard.address) == guard.address
    except Unavailable:
        return False


async def wait_free(host: str, address: str) -> None:
    """Wait until nothing uses a port."""
    async with asyncio.timeout(30):
        while is_in_use(host, port_of(address)):  # noqa: ASYNC110 - polls the system
            await asyncio.sleep(0.05)


def make_server() -> grpc.aio.Server:
    return grpc.aio.server(options=rpc.server_options())


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def listen(host: str, port: int, *, reuse: bool = True) -> None:
    """Listen as other programs do, for a moment."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        other.bind((host, port))
        other.listen()


def is_in_use(host: str, port: int) -> bool:
    try:
        listen(host, port)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


@pytest.mark.parametrize("reuse", [False, True])
def test_other_listener_cannot_take_a_guarded_port(guard: PortGuard, *, reuse: bool) -> None:
    with pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", port_of(guard.address), reuse=reuse)


def test_connection_does_not_get_a_guarded_port(guard: PortGuard) -> None:
    port = port_of(guard.address)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        try:
            client.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("HH", port, port))
        except OSError:
            pytest.skip("needs Linux 6.3")
        with pytest.raises(OSError, match="assign requested address"):
            client.connect(server.getsockname())


async def test_servers_of_the_process_take_the_port_one_after_the_other(guard: PortGuard) -> None:
    for _ in range(2):
        await serve_once(guard)
    assert is_in_use("127.0.0.1", port_of(guard.address))


async def test_second_server_on_the_port_fails_with_a_clear_error() -> None:
    failures: list[InternalError] = []
    first, second = (ResilientServer(make_server, failures.append) for _ in range(2))
    address = first.bind("127.0.0.1:0")
    await first.start(())
    with pytest.raises(Unavailable, match=f"cannot listen on {address}: the port is in use"):
        second.bind(address)
    await second.stop(0.0)
    await first.stop(0.0)
    await wait_free("127.0.0.1", address)
    assert not failures


@pytest.mark.parametrize(
    ("host", "also"),
    [("0.0.0.0", "127.0.0.1"), ("[::]", "127.0.0.1"), ("[::1]", "::1"), ("localhost", "127.0.0.1")],
)
async def test_every_form_of_host_is_guarded(host: str, also: str) -> None:
    if "[" in host and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    guard = PortGuard(f"{host}:0")
    await serve_once(guard)
    assert is_in_use(also, port_of(guard.address))
    guard.close()
    await wait_free(also, guard.address)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
async def test_host_of_another_machine_is_the_servers_error(host: str) -> None:
    server = ResilientServer(make_server, lambda _: None)
    with pytest.raises(Unavailable, match="not an address of this machine"):
        server.bind(f"{host}:0")
    await server.stop(0.0)
