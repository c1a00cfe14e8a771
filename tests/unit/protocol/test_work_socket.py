"""The work line: whatever the network makes of a frame, its message arrives whole and in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergai.errors import InvalidInput, Unavailable
from synergai.protocol.work_socket import WorkLine

if TYPE_CHECKING:
    from synergai.protocol.request_codec import Buffer

BUFFER = 256 << 10
SIZES = st.sampled_from([0, 1, 3, 5000, BUFFER - 5, BUFFER - 4, BUFFER - 3, BUFFER + 1, 700_000])


class Socket:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: list[bytes]) -> None:
        self.sent += b"".join(parts)

    def abort(self) -> None:
        self.closed = True


class End:
    """One end of a line whose socket is the test."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.taken: list[Buffer] = []
        self.socket = Socket()
        self.line = WorkLine(self.taken.append, max_bytes)
        self.line.connection_made(cast("asyncio.Transport", self.socket))

    def receive(self, data: bytes, piece: int) -> None:
        """Let bytes come, at most `piece` at a time."""
        view = memoryview(data)
        while view and not self.line.ended.done():
            room = self.line.get_buffer(-1)
            count = min(len(view), len(room), piece)
            room[:count] = view[:count]
            self.line.buffer_updated(count)
            view = view[count:]


def framed(*messages: bytes) -> bytes:
    return b"".join(len(message).to_bytes(4, "little") + message for message in messages)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(SIZES, max_size=6), piece=st.sampled_from([1021, 4099, 65_536, BUFFER, 1 << 20])
)
def test_messages_come_whole_however_they_are_cut(sizes: list[int], piece: int) -> None:
    async def check() -> None:
        messages = [bytes([number]) * size for number, size in enumerate(sizes)]
        sender, receiver = End(), End()
        for message in messages:
            sender.line.send((message[:2], memoryview(message)[2:]))
        assert sender.socket.sent == framed(*messages)
        receiver.receive(bytes(sender.socket.sent), piece)
        assert list(map(bytes, receiver.taken)) == messages

    asyncio.run(check())


async def test_message_keeps_its_bytes_when_later_ones_come() -> None:
    end = End()
    for fill in (b"a", b"b"):
        end.receive(framed(fill * 10, fill * 300_000), BUFFER)
    assert [bytes(taken[:1]) for taken in end.taken] == [b"a", b"a", b"b", b"b"]
    assert [bytes(taken[-1:]) for taken in end.taken] == [b"a", b"a", b"b", b"b"]


async def test_message_beyond_the_bound_ends_the_line_before_it_takes_memory() -> None:
    end = End(max_bytes=100)
    end.receive(framed(b"x" * 100) + (101).to_bytes(4, "little"), BUFFER)
    assert len(end.taken) == 1
    assert end.socket.closed
    assert isinstance(end.line.ended.exception(), InvalidInput)


async def test_message_that_is_refused_ends_the_line_and_no_other_is_taken() -> None:
    end = End()
    seen: list[Buffer] = []

    def refuse(message: Buffer) -> None:
        seen.append(message)
        raise InvalidInput("no")

    end.line.take = refuse
    end.receive(framed(b"one", b"two"), BUFFER)
    assert seen == [b"one"]
    with pytest.raises(InvalidInput, match="no"):
        await end.line.ended


async def test_ended_line_sends_nothing_and_keeps_nobody_waiting() -> None:
    end = End()
    end.line.pause_writing()
    waiting = asyncio.ensure_future(end.line.drain())
    end.line.connection_lost(ConnectionResetError())
    await waiting
    end.line.send((b"late",))
    assert not end.socket.sent
    with pytest.raises(Unavailable):
        await end.line.ended


async def test_line_waits_for_a_peer_that_does_not_read() -> None:
    end = End()
    end.line.pause_writing()
    waiting = asyncio.ensure_future(end.line.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    end.line.resume_writing()
    await waiting


async def test_orderly_end_is_no_error() -> None:
    end = End()
    end.line.eof_received()
    assert end.line.ended.exception() is None
