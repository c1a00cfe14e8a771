"""The limit on responses that clients have not read yet."""

import asyncio

import pytest

from synergai.errors import Overloaded
from synergai.wire.memory_bounds import COUNTED_BYTES, UnreadOfClient, UnreadResponses

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
    client.expect("engine")
    client.received("engine", 0, MIB)
    client.close()
    client.remove(MIB)
    client.add(MIB)
    client.close()
    assert clients.unread.bytes == 0
    assert not clients.disconnected


async def test_only_streams_above_their_share_wait(clients: Clients) -> None:
    hoarder, other = clients.open("hoarder"), clients.open("other")
    other.add(MIB // 2)
    hoarder.add(3 * MIB)
    assert hoarder.has_room, "less than half of the limit is used"
    hoarder.add(MIB)
    assert (hoarder.has_room, other.has_room) == (False, True)
    waiting = asyncio.create_task(hoarder.wait_for_room())
    await asyncio.sleep(0)
    hoarder.remove(3 * MIB)
    await asyncio.wait_for(waiting, 10)


async def test_expected_responses_count_for_the_share_of_their_stream(clients: Clients) -> None:
    client = clients.open("a")
    client.received("engine", client.expect("engine"), MIB)
    for _ in range(4):
        client.expect("engine")
    assert not client.has_room
    assert clients.open("other").has_room
    client.remove(MIB)
    assert client.has_room, "a client that has read everything always has room"


async def test_expected_size_follows_smaller_responses(clients: Clients) -> None:
    client = clients.open("a")
    client.received("engine", 0, MIB)
    client.remove(MIB)
    for _ in range(100):
        client.received("engine", client.expect("engine"), COUNTED_BYTES)
        client.remove(COUNTED_BYTES)
    assert client.expect("engine") < MIB // 64
    assert client.bytes == 0


async def test_failed_request_is_no_longer_expected(clients: Clients) -> None:
    client = clients.open("a")
    client.received("engine", 0, MIB)
    expected = client.expect("engine")
    assert (expected, client.expected) == (MIB, MIB)
    client.received("engine", expected, 0)
    assert client.expected == 0
