"""The work line: a plain socket for the messages of the work stream.

A gRPC message passes two threads and several system calls at each end, which for a short query is
most of what the gateway adds. Between a gateway and its agents, which are ours on both sides, the
same messages go over a socket of the event loop instead: each as a frame, four bytes of length
(little endian) and the serialised message. The first frame is the agent's session.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from synergai.errors import InvalidInput, SynergaiError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.protocol.request_codec import Buffer

_LENGTH_BYTES: Final = 4
_BUFFER_BYTES: Final = 256 << 10
_JOIN_BYTES: Final = 64 << 10
"""Up to here, copying parts into one is quicker than handing them to the socket singly."""


class WorkLine(asyncio.BufferedProtocol):
    """One end of a work line.

    Frames come by callback. Small ones are copied out of a buffer that all share; a large one is
    received into memory of its own, and what is made of it may be views of that.

    Args:
        take: called with each message: bytes, or a view that may be kept. A `SynergaiError` that
            it raises ends the line.
        max_bytes: the largest message that may come.

    Attributes:
        ended: done when the line is; with the error that ended it, if it was not the peer's
            orderly end.
    """

    def __init__(self, take: Callable[[Buffer], None], max_bytes: int) -> None:
        self.take = take
        self.max_bytes = max_bytes
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport
        self._room = asyncio.Event()
        self._room.set()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._held = 0
        self._large: memoryview | None = None
        self._filled = 0

    # --- sending ----------------------------------------------------------------------------

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send the message that `parts` make up; nothing once the line has ended."""
        size = sum(map(len, parts))
        framed = [size.to_bytes(_LENGTH_BYTES, "little"), *parts]
        if self.ended.done():
            return
        if size <= _JOIN_BYTES:
            self._transport.write(b"".join(framed))
        else:
            self._transport.writelines(framed)

    async def drain(self) -> None:
        """Return once the peer has taken most of what was sent, or the line has ended."""
        await self._room.wait()

    def finish(self) -> None:
        """Send nothing more; the peer is to end the line once it has read all."""
        if not self.ended.done():
            self._transport.write_eof()

    def close(self, error: SynergaiError | None = None) -> None:
        """End the line now, because of `error` if there is one.

        What the peer has not taken yet is dropped: it may never take it.
        """
        self._end(error)
        self._transport.abort()

    # --- asyncio.BufferedProtocol -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        self._end(None if error is None else Unavailable("the work line was lost"))

    def eof_received(self) -> None:
        """The peer sends nothing more: the line ends, after what is still to be sent."""
        self._end(None)

    def pause_writing(self) -> None:
        """The peer does not keep up."""
        self._room.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._room.set()

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Where the next bytes belong."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._buffer[self._held :]

    def buffer_updated(self, count: int) -> None:
        """So many bytes have come."""
        if self._large is None:
            self._held += count
            self._take_frames()
            return
        self._filled += count
        if self._filled == len(self._large):
            message, self._large = self._large, None
            self._hand_on(message)

    def _take_frames(self) -> None:
        buffer, position, end = self._buffer, 0, self._held
        while end - position >= _LENGTH_BYTES and not self.ended.done():
            start = position + _LENGTH_BYTES
            size = int.from_bytes(buffer[position:start], "little")
            if size > self.max_bytes:
                text = f"a message of {size:,} bytes on a work line; {self.max_bytes:,} are allowed"
                self.close(InvalidInput(text))
                return
            if start + size > end:
                if size > _BUFFER_BYTES - _LENGTH_BYTES:
                    self._receive_apart(size, buffer[start:end])
                    self._held = 0
                    return
                break
            position = start + size
            self._hand_on(bytes(buffer[start:position]))
        if position:
            rest = bytes(buffer[position:end])
            buffer[: len(rest)] = rest
            self._held = len(rest)

    def _receive_apart(self, size: int, begun: memoryview) -> None:
        """Receive a message larger than the buffer, of which the beginning is here."""
        self._large = memoryview(bytearray(size))
        self._filled = len(begun)
        self._large[: self._filled] = begun

    def _hand_on(self, message: Buffer) -> None:
        try:
            self.take(message)
        except SynergaiError as error:
            self.close(error)

    def _end(self, error: SynergaiError | None) -> None:
        self._room.set()
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # whether anybody looks is up to the owner
