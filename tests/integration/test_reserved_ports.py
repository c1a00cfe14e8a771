"""Ports of local fleets, which other programs must not take between two starts of a gateway."""

import socket

import pytest

from demo.local_fleet import reserved_port


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
