"""The client of a connection."""

import asyncio

import pytest

from synergai.wire.server_call import SocketPeer


@pytest.mark.parametrize(
    ("client", "local"),
    [
        (("127.0.0.1", 4711), True),
        (("::1", 4711, 0, 0), True),
        (("10.0.0.7", 4711), False),
        (("2001:db8::1", 4711, 0, 0), False),
        (None, False),
    ],
)
def test_local_clients_connect_by_loopback(client: tuple[object, ...] | None, local: bool) -> None:
    assert SocketPeer(asyncio.Transport({"peername": client})).is_local == local
