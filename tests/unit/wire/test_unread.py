"""The limit on responses that clients have not read yet."""

import pytest

from synergai.errors import Overloaded
from synergai.wire.memory_bounds import UnreadOfClient, UnreadResponses

KIB = 1024
MIB = 1024 * KIB


class Clients:
    """Clients of a server with a limit of 8 MiB."""

    def __init__(self) -> None:
        self.unread = UnreadResponses(8 * MIB)
        self.disconnected: dict[str, Overloaded] = {}

    def open(self, name: str) -> UnreadOfClient:
        return self.unread.open(lambda error: self.disconnected.update({name: error}))


@pytest.fixture
async def clients() -> Clients:
    return Clients()


async def test_client_that_has_read_nothing_for_longest_is_disconnected(clients: Clients) -> None:
    silent, slow, small = (clients.open(name) for name in ("silent", "slow", "small"))
    small.read_at = silent.read_at - 60
    for client in (silent, slow):
        client.add(3 * MIB)
        client.add(MIB // 2)
    small.add(MIB // 2)
    slow.remove(MIB // 2)
    slow.read_at += 1
    slow.add(2 * MIB)
    assert list(clients.disconnected) == ["silent"]
    assert "3,670,016 bytes of responses were not read" in str(clients.disconnected["silent"])
    assert clients.unread.bytes == 5 * MIB + MIB // 2


async def test_bytes_of_a_closed_client_are_not_counted(clients: Clients) -> None:
    client = clients.open("a")
    client.add(MIB)
    client.close()
    client.remove(MIB)
    client.add(MIB)
    client.close()
    assert clients.unread.bytes == 0
    assert not clients.disconnected
