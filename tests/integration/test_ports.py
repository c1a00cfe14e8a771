"""The check that ports are free, before a server starts."""

from __future__ import annotations

import socket

import pytest

from synergai.errors import Unavailable
from synergai.runtime.ports import check_free
from synergai.testing import reserved_port


def test_port_in_use_is_refused_and_a_free_one_stays_free() -> None:
    check_free(["127.0.0.1:0", "localhost:0"])
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        refusal = f"cannot listen on {address}: the port is in use"
        with socket.create_server(("127.0.0.1", port)), pytest.raises(Unavailable, match=refusal):
            check_free(["127.0.0.1:0", address])
        check_free([address])
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_host_of_another_machine_is_refused() -> None:
    with pytest.raises(Unavailable, match="the host is not an address of this machine"):
        check_free(["192.0.2.1:0"])


def test_host_with_one_address_of_this_machine_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(*_: object, **__: object) -> list[tuple[object, ...]]:
        hosts = ("192.0.2.1", "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    check_free(["localhost:0"])
