"""The client of a connection."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from synergai.errors import PermissionDenied
from synergai.protocol import peer as peer_module
from synergai.protocol.peer import Peer

TABLE: Final = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:1267 0100007F:1F41 01 00000000:00000000 00:00000000 00000000  1000        0 1 2
   1: 0100007F:1268 0100007F:1F41 06 00000000:00000000 00:00000000 00000000     0        0 1 2
   2: 0100007F:1269 0100007F:1F42 01 00000000:00000000 00:00000000 00000000  1001        0 1 2
   3: 0100007F:126A 0100007F:1F41 01 00000000:00000000 00:00000000 00000000 65534        0 1 2
"""
SERVER: Final = ("127.0.0.1", 8001)


class FakeTransport(asyncio.Transport):
    """A connection from an address to `SERVER`; its socket is another."""

    def __init__(self, client: tuple[str, int] | None, connection: socket.socket) -> None:
        super().__init__({"peername": client, "sockname": SERVER, "socket": connection})

    def is_closing(self) -> bool:
        return False


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    own, other = socket.socketpair()
    with own, other:
        yield own


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tcp").write_text(TABLE)
    monkeypatch.setattr(peer_module, "_TABLES", tmp_path)
    return tmp_path


@pytest.mark.parametrize("client", [("10.0.0.7", 4711), ("2001:db8::1", 4711), None])
def test_clients_on_other_machines_are_no_users_of_this_one(
    connection: socket.socket, client: Any
) -> None:
    peer = Peer(FakeTransport(client, connection))
    assert not peer.is_local
    with pytest.raises(PermissionDenied, match="loopback"):
        _ = peer.user


def test_user_of_a_client_is_that_of_its_end_of_the_connection(connection: socket.socket) -> None:
    assert Peer(FakeTransport(("127.0.0.1", 4711), connection)).user == 1000


@pytest.mark.parametrize(
    "port",
    [
        pytest.param(4712, id="closed"),
        pytest.param(4713, id="of another user, to another port"),
        pytest.param(4714, id="of an unknown user"),
        pytest.param(4715, id="absent"),
    ],
)
def test_client_without_an_open_end_of_a_known_user_is_refused(
    connection: socket.socket, port: int
) -> None:
    with pytest.raises(PermissionDenied, match="which user's"):
        _ = Peer(FakeTransport(("127.0.0.1", port), connection)).user


def test_addresses_of_a_connection_that_has_ended_may_be_those_of_another_user() -> None:
    with socket.socket() as ended, pytest.raises(PermissionDenied, match="which user's"):
        _ = Peer(FakeTransport(("127.0.0.1", 4711), ended)).user


def test_user_of_a_connection_is_looked_up_once(connection: socket.socket, tables: Path) -> None:
    known, unknown = (Peer(FakeTransport(("127.0.0.1", port), connection)) for port in (4711, 4712))
    assert known.user == 1000
    with pytest.raises(PermissionDenied):
        _ = unknown.user
    (tables / "tcp").write_text(TABLE.replace(" 1000 ", " 1002 ").replace(" 06 ", " 01 "))
    assert known.user == 1000
    with pytest.raises(PermissionDenied):
        _ = unknown.user
