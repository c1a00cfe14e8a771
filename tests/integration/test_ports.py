"""Ports: the check that they are free, sockets of servers, and ports that a fleet reserves."""

import socket

import pytest

from demo.local_fleet import reserved_port
from gateway.calls.http.app import HttpApp, HttpServer
from gateway.gateway_settings import GatewaySettings
from synergai.errors import Unavailable
from synergai.runtime.addresses import bind, check_free
from synergai.wire.memory_bounds import UnreadResponses


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Let every host have the given addresses."""

    def found(_host: object, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", found)


def test_port_in_use_is_refused_and_a_free_one_stays_free() -> None:
    check_free({"--listen": "127.0.0.1:0", "--hub": "localhost:0"})
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        refusal = f"cannot listen on {address}: the port is in use; choose another one with --hub$"
        with socket.create_server(("127.0.0.1", port)), pytest.raises(Unavailable, match=refusal):
            check_free({"--listen": "127.0.0.1:0", "--hub": address})
        check_free({"--hub": address})
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_check_accepts_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "listen", lambda *_: pytest.fail("it listens"))
    check_free({"--listen": "localhost:0"})


def test_host_of_another_machine_is_refused() -> None:
    with pytest.raises(Unavailable, match=r":0: the host is not an address of this machine"):
        check_free({"--listen": "192.0.2.1:0"})


@pytest.mark.parametrize(
    ("host", "also"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("0.0.0.0", "::1"),
        ("[::]", "127.0.0.1"),
        ("[::]", "::1"),
        ("", "127.0.0.1"),
        ("", "::1"),
        ("[::1]", "::1"),
    ],
)
def test_every_wildcard_stands_for_both_families(host: str, also: str) -> None:
    if (":" in host or ":" in also) and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    [bound] = bind(f"{host}:0", 1)
    with bound, socket.create_connection((also, bound.getsockname()[1])):
        pass


async def test_host_with_one_address_of_this_machine_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve_to(monkeypatch, "192.0.2.1", "127.0.0.1")
    check_free({"--listen": "localhost:0"})
    server = HttpServer(HttpApp([]), UnreadResponses(), GatewaySettings())
    address = await server.start("localhost:0")
    _, _, port = address.rpartition(":")
    with socket.socket() as client:
        client.connect(("127.0.0.1", int(port)))
    await server.close()


def test_port_in_use_on_one_of_two_addresses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "127.0.0.1", "127.0.0.2")
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match="the port is in use"):
            check_free({"--listen": f"localhost:{port}"})


def test_reserved_port_refuses_connections_until_its_server_listens() -> None:
    with reserved_port() as port:
        address = ("127.0.0.1", port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 10.0)
        for _ in range(2):  # a server may be restarted
            with socket.create_server(address), socket.create_connection(address, 10.0):
                pass


def test_reserved_port_cannot_be_taken_without_knowing_it() -> None:
    with reserved_port() as port, socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
