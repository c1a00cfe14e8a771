"""Ending of connections that a library owns."""

import socket

from synergai.protocol.grpcio.connections import shut_down_connection


def test_connection_of_a_peer_is_shut_down_and_no_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as one, socket.create_connection(address) as other:
            (first, _), (second, _) = server.accept(), server.accept()
            with first, second:
                host, port = one.getsockname()
                assert shut_down_connection(f"ipv4:{host}:{port}")
                assert one.recv(1) == b""
                second.sendall(b"x")
                assert other.recv(1) == b"x"


def test_client_with_one_port_for_two_servers_is_shut_down() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.1", 0)) as another,
        socket.socket() as one,
        socket.socket() as two,
    ):
        for client in (one, two):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", 0))
        two.bind(one.getsockname())
        one.connect(server.getsockname())
        two.connect(another.getsockname())
        (first, _), (second, _) = server.accept(), another.accept()
        with first, second:
            host, port = one.getsockname()
            assert shut_down_connection(f"ipv4:{host}:{port}")
            assert one.recv(1) == two.recv(1) == b""


def test_unknown_peer_is_ignored() -> None:
    assert not shut_down_connection("ipv6:%5B::1%5D:1")
    assert not shut_down_connection("unix:")
