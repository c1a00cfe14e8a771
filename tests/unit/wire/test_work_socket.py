"""Work sockets deliver messages whole and in order, however frames are fragmented."""

from __future__ import annotations

import asyncio
import random
import socket
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergai.errors import InvalidInput, Unavailable
from synergai.wire.request_codec import Buffer
from synergai.wire.work_socket import MAX_UNAUTHENTICATED, WorkSocket, WorkSocketServer

BUFFER = 64 << 10
SIZES = st.sampled_from([0, 1, 3, 5000, BUFFER - 5, BUFFER - 4, BUFFER - 3, BUFFER + 1, 700_000])


class Transport:
    def __init__(self, *, half_closes: bool = True) -> None:
        self.sent = bytearray()
        self.writes = 0
        self.ended = ""
        self.closed = False
        self.wake_bytes = 1
        self._half_closes = half_closes

    def get_extra_info(self, name: str) -> Transport:
        assert name == "socket"
        return self

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.wake_bytes = value

    def getsockopt(self, _level: int, _option: int, _size: int) -> bytes:
        return b""  # nothing is known of the link

    def can_write_eof(self) -> bool:
        return self._half_closes

    def write_eof(self) -> None:
        self.ended = "eof"

    def close(self) -> None:
        self.ended = "close"

    def write(self, data: bytes) -> None:
        if self.ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        self.sent += data
        self.writes += 1

    def writelines(self, parts: list[bytes]) -> None:
        self.sent += b"".join(parts)

    def abort(self) -> None:
        self.closed = True


class End:
    """One end of a work socket with a fake transport."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.received: list[Buffer] = []
        self.transport = Transport()
        self.socket = WorkSocket(self.received.append, max_bytes)
        self.socket.connection_made(cast("asyncio.Transport", self.transport))

    def receive(self, data: bytes, piece: int) -> None:
        view = memoryview(data)
        while view and not self.socket.closed.done():
            room = self.socket.get_buffer(-1)
            count = min(len(view), len(room), piece)
            room[:count] = view[:count]
            self.socket.buffer_updated(count)
            view = view[count:]


def framed(*messages: bytes) -> bytes:
    return b"".join(len(message).to_bytes(4, "little") + message for message in messages)


@settings(max_examples=60)
@given(
    sizes=st.lists(SIZES, max_size=6), piece=st.sampled_from([1021, 4099, 65_536, BUFFER, 1 << 20])
)
def test_messages_arrive_whole_however_they_are_fragmented(sizes: list[int], piece: int) -> None:
    async def check() -> None:
        messages = [bytes([number]) * size for number, size in enumerate(sizes)]
        sender, receiver = End(), End()
        for message in messages:
            sender.socket.send((message[:2], memoryview(message)[2:]))
        await asyncio.sleep(0)
        assert sender.transport.sent == framed(*messages)
        receiver.receive(bytes(sender.transport.sent), piece)
        assert list(map(bytes, receiver.received)) == messages

    asyncio.run(check())


async def test_oversized_message_closes_the_socket_before_memory_is_allocated() -> None:
    end = End(max_bytes=100)
    end.receive(framed(b"x" * 100) + (101).to_bytes(4, "little"), BUFFER)
    assert len(end.received) == 1
    assert end.transport.closed
    assert isinstance(end.socket.closed.exception(), InvalidInput)


async def test_rejected_message_closes_the_socket_and_later_ones_are_dropped() -> None:
    end = End()
    seen: list[Buffer] = []

    def refuse(message: Buffer) -> None:
        seen.append(message)
        raise InvalidInput("no")

    end.socket.on_message = refuse
    end.receive(framed(b"one", b"two"), BUFFER)
    assert seen == [b"one"]
    with pytest.raises(InvalidInput, match="no"):
        await end.socket.closed


async def test_closed_socket_sends_nothing_and_unblocks_drain() -> None:
    end = End()
    end.socket.pause_writing()
    waiting = asyncio.ensure_future(end.socket.drain())
    end.socket.connection_lost(ConnectionResetError())
    await waiting
    end.socket.send((b"late",))
    assert not end.transport.sent
    with pytest.raises(Unavailable):
        await end.socket.closed


async def test_messages_of_one_turn_are_written_together() -> None:
    end = End()
    for message in (b"one", b"two", b"three"):
        end.socket.send((message,))
    await asyncio.sleep(0)
    assert end.transport.sent == framed(b"one", b"two", b"three")
    assert end.transport.writes == 1


async def test_what_was_sent_is_written_before_the_socket_is_finished() -> None:
    end = End()
    end.socket.send((b"last",))
    end.socket.finish()
    await asyncio.sleep(0)
    assert end.transport.sent == framed(b"last")
    assert end.transport.ended == "eof"


async def test_drain_waits_for_a_slow_peer() -> None:
    end = End()
    end.socket.pause_writing()
    waiting = asyncio.ensure_future(end.socket.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    end.socket.resume_writing()
    await waiting


@pytest.mark.parametrize(("half_closes", "ended"), [(True, "eof"), (False, "close")])
async def test_finish_closes_what_the_transport_can_close_without_loss(
    half_closes: bool, ended: str
) -> None:
    end = End()
    transport = Transport(half_closes=half_closes)
    end.socket.connection_made(cast("asyncio.Transport", transport))
    end.socket.finish()
    assert (transport.ended, transport.closed) == (ended, False)
    assert not end.socket.closed.done()
    end.socket.send((b"late",))  # such as a heartbeat
    assert not transport.sent


async def test_socket_without_a_finished_handshake_can_be_closed() -> None:
    socket = WorkSocket(lambda _: None, 100)
    socket.finish()
    socket.close(Unavailable("no handshake"))
    with pytest.raises(Unavailable):
        await socket.closed


async def test_eof_is_no_error() -> None:
    end = End()
    end.socket.eof_received()
    assert end.socket.closed.exception() is None


async def test_buffer_is_small_until_the_peer_may_send_large_messages() -> None:
    end = End(max_bytes=64)
    assert len(end.socket.get_buffer(-1)) == 128

    def introduce(message: Buffer) -> None:
        end.received.append(message)
        end.socket.on_message = end.received.append
        end.socket.max_bytes = 1 << 20

    end.socket.on_message = introduce
    end.receive(framed(b"i" * 64, b"x" * 5000, b"y" * 10), 1 << 20)
    assert list(map(len, end.received)) == [64, 5000, 10]
    assert len(end.socket.get_buffer(-1)) == BUFFER


async def test_announced_message_takes_memory_only_as_its_bytes_arrive() -> None:
    end = End(max_bytes=64 << 20)
    end.receive((64 << 20).to_bytes(4, "little"), BUFFER)
    assert len(end.socket.get_buffer(-1)) <= 1 << 20
    end.receive(bytes(3 << 20), BUFFER)
    assert len(end.socket.get_buffer(-1)) <= 4 << 20
    assert not end.received


async def test_large_message_is_delivered_whole_although_its_memory_grows() -> None:
    end = End(max_bytes=8 << 20)
    message = random.Random(1).randbytes(5 << 20)
    end.receive(framed(message, b"next"), BUFFER)
    assert [bytes(each) for each in end.received] == [message, b"next"]


async def test_most_of_a_large_message_is_received_in_its_place() -> None:
    end = End()
    message = random.Random(1).randbytes(600_000)
    data = framed(message)
    room = end.socket.get_buffer(-1)
    room[:] = data[: len(room)]
    end.socket.buffer_updated(len(room))
    rest = end.socket.get_buffer(-1)
    assert len(rest) == len(data) - len(room)
    rest[:] = data[len(room) :]
    end.socket.buffer_updated(len(rest))
    assert isinstance(end.received[0], memoryview)
    assert end.received[0].obj is rest.obj
    assert end.received == [message]


async def test_kernel_wakes_the_reader_seldom_until_the_last_bytes_of_a_large_message() -> None:
    end = End(max_bytes=1 << 20)
    data = framed(bytes(1 << 20))
    left, wakes = data, []
    while left:
        arrived = max(1000, end.transport.wake_bytes)
        end.receive(left[:arrived], arrived)
        left = left[arrived:]
        wakes.append(end.transport.wake_bytes)
    assert end.received == [data[4:]]
    assert wakes[-1] == 1
    assert len(wakes) < 250
    assert max(wakes) == 64 << 10
    end.receive(framed(b"small"), BUFFER)
    assert end.received[1:] == [b"small"]


async def test_rate_of_the_link_is_the_median_of_large_messages_without_their_first_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("synergai.wire.work_socket.time", SimpleNamespace(monotonic=lambda: now))
    end = End()
    data = framed(bytes(BUFFER + 100_000 - 4))
    rates = []
    end.receive(framed(b"small"), BUFFER)
    for seconds in (1.0, 0.1, 0.5, 0.5, 0.5):
        end.receive(data[:BUFFER], BUFFER)
        now += seconds
        end.receive(data[BUFFER:], BUFFER)
        rates.append(round(end.socket.received_bytes_per_s))
    assert rates == [100_000, 100_000, 200_000, 200_000, 200_000]


async def test_lost_connection_frees_the_message_that_it_was_receiving() -> None:
    end = End(max_bytes=8 << 20)
    end.receive((8 << 20).to_bytes(4, "little") + bytes(1 << 20), BUFFER)
    end.socket.connection_lost(None)
    assert end.socket._large is None
    assert not end.socket._buffer


def present_id(socket: WorkSocket, connection_id: bytes = b"an-id") -> None:
    data = len(connection_id).to_bytes(4, "little") + connection_id
    socket.get_buffer(-1)[: len(data)] = data
    socket.buffer_updated(len(data))


async def test_oldest_socket_without_an_id_makes_room_for_a_new_one() -> None:
    authenticated: list[str] = []
    server = WorkSocketServer(lambda connection_id, _: authenticated.append(connection_id))
    agent, *idle = [server._accept() for _ in range(MAX_UNAUTHENTICATED)]
    present_id(agent)
    newer = [server._accept() for _ in range(3)]
    assert authenticated == ["an-id"]
    assert not agent.closed.done()
    assert [each.closed.done() for each in idle[:3]] == [True, True, False]
    assert isinstance(idle[0].closed.exception(), Unavailable)
    for work_socket in (agent, *idle, *newer):
        work_socket.close()
