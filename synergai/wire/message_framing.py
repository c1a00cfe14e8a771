"""Messages of gRPC in the data of a call."""

from __future__ import annotations

import struct
import zlib
from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from synergai.errors import InvalidInput, MessageTooLarge, NotSupported

if TYPE_CHECKING:
    from synergai.wire.request_codec import Buffer

MOST_CUT: Final = 64
"""Messages of a call that are cut out of its data before its handler takes them: they cost more
time and memory than their bytes."""
_PIECE_BYTES: Final = 1 << 20
_PIECE_PER_ARRIVED: Final = 16
"""Memory that a message takes at a time while it arrives, in all and for each byte of it that has
arrived: clients may announce more than they send. Where the system uses huge pages, all of it is
taken by the first byte. A message of up to 1 MiB ends up in one piece."""
_PREFIX: Final = struct.Struct(">BI")
"""What precedes a message: whether it is compressed, and its length."""
PREFIX_BYTES: Final = _PREFIX.size
_FORMATS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def prefix(message: Buffer) -> bytes:
    """Return what comes before a message in the data of a call."""
    return _PREFIX.pack(0, len(message))


def prefixed(message: Buffer) -> bytes:
    """Return a message as the data of a call."""
    return _PREFIX.pack(0, len(message)) + message


class Compressed(bytes):
    """A message that is still compressed: one of a few kilobytes may decompress to the limit."""

    __slots__ = ()


class MessageReader:
    """Cuts the messages out of the data of a call.

    Args:
        max_bytes: largest message, also once it is decompressed.
        encoding: how compressed messages are compressed.

    Attributes:
        to_come: bytes that are missing of the message whose beginning has arrived.
        uncut: data behind the messages that were returned.
    """

    to_come = 0
    _prefix = b""
    # Bytes of the last piece that have arrived.
    _filled = 0

    def __init__(self, max_bytes: int, encoding: str) -> None:
        self._max_bytes = max_bytes
        self._encoding = encoding
        # Of the message whose prefix has arrived.
        self._pieces: list[memoryview] = []
        self.uncut: deque[Buffer] = deque()

    @property
    def is_within_message(self) -> bool:
        """Whether the data ends within a message or its prefix."""
        return bool(self._prefix)

    def message_buffer(self) -> memoryview | None:
        """Return memory for what comes next of a message; None for other data.

        Data that was received there is fed as the part of the message that it fills. The first data
        of one has no such memory.
        """
        return self._free_buffer() if self._pieces and not self.uncut else None

    def feed(self, data: Buffer, most: int = MOST_CUT) -> list[Buffer]:
        """Return the messages that the data completes, this many at most; `cut` returns others."""
        if self.uncut or most <= 0:
            self.uncut.append(bytes(data))
            return []
        return self._cut(data, most)

    def cut(self) -> list[Buffer]:
        """Return further messages of the data; none if it has no others."""
        messages: list[Buffer] = []
        while self.uncut and not messages:
            messages = self._cut(self.uncut.popleft(), MOST_CUT)
        return messages

    def _cut(self, data: Buffer, most: int) -> list[Buffer]:
        messages: list[Buffer] = []
        at, end = 0, len(data)
        while at < end and len(messages) < most:
            start = at + PREFIX_BYTES
            if start <= end and not self._prefix:  # whole messages need not be put together
                is_compressed, size = _PREFIX.unpack_from(data, at)
                if (stop := start + size) <= end and size <= self._max_bytes:
                    message: Buffer = bytes(data[start:stop])
                    messages.append(Compressed(message) if is_compressed else message)
                    at = stop
                    continue
            if len(self._prefix) < PREFIX_BYTES:
                taken = min(PREFIX_BYTES - len(self._prefix), end - at)
                self._prefix += data[at : at + taken]
                at += taken
                if len(self._prefix) < PREFIX_BYTES:
                    break
                self.to_come = int.from_bytes(self._prefix[1:])
                if self.to_come > self._max_bytes:
                    raise _too_large(self.to_come, self._max_bytes)
            taken = min(self.to_come, end - at)
            self._add(data[at : at + taken])
            at += taken
            if not self.to_come:
                pieces = self._pieces
                message = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                messages.append(Compressed(message) if self._prefix[0] else message)
                pieces.clear()
                self._prefix = b""
        if at < end and len(messages) == most:
            self.uncut.appendleft(bytes(data[at:]))
        return messages

    def _add(self, data: Buffer) -> None:
        while data:
            free = self._free_buffer(len(data))
            size = min(len(free), len(data))
            if not (isinstance(data, memoryview) and data.obj is free.obj):
                free[:size] = data[:size]
            self._filled += size
            self.to_come -= size
            data = data[size:]

    def _free_buffer(self, at_hand: int = 0) -> memoryview:
        """Return memory for what comes next of the message that is incomplete.

        Args:
            at_hand: bytes of it that have arrived and are to be put there.
        """
        if not self._pieces or self._filled == len(self._pieces[-1]):
            size = int.from_bytes(self._prefix[1:])
            arrived = size - self.to_come
            if arrived < _PIECE_BYTES:  # the first piece grows
                self._filled = arrived
                size = min(size, _PIECE_BYTES, _PIECE_PER_ARRIVED * (arrived + at_hand))
            else:
                self._filled = 0
                size = min(self.to_come, _PIECE_BYTES)
            piece = np.empty(size, np.uint8).data
            if self._filled:
                piece[:arrived] = self._pieces.pop()
            self._pieces.append(piece)
        return self._pieces[-1][self._filled :]

    def clear(self) -> None:
        """Drop all data that is not part of a message returned."""
        self._pieces.clear()
        self.uncut.clear()

    def decompress(self, data: Compressed) -> bytes:
        """Return a message that was compressed."""
        kind = _FORMATS.get(self._encoding)
        if kind is None:
            raise NotSupported(f"messages are compressed with {self._encoding!r}: use gzip")
        decompressor = zlib.decompressobj(kind)
        try:
            message = decompressor.decompress(data, self._max_bytes + 1)
        except zlib.error:
            raise InvalidInput("a message cannot be decompressed") from None
        if len(message) > self._max_bytes:
            raise _too_large(len(message), self._max_bytes)
        if not decompressor.eof:
            raise InvalidInput("a message cannot be decompressed")
        return message


def _too_large(size: int, limit: int) -> MessageTooLarge:
    # As grpcio says it.
    return MessageTooLarge(f"received a message larger than max ({size} vs. {limit})")
