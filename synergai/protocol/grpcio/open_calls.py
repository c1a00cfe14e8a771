"""The calls that are open on a connection, by the frames of HTTP/2 that pass.

A server of grpc.aio that stops ends calls that have just arrived with CANCELLED, after which
clients do not try again. A front therefore stops before its server: it asks clients to begin no
further calls, and closes each connection once the last call on it has been answered.

Remove it together with `front`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from synergai.protocol.grpcio.http2_limits import PREFACE

if TYPE_CHECKING:
    from collections.abc import Callable

GOAWAY: Final = b"\0\0\x08\x07\0\0\0\0\0" + b"\x7f\xff\xff\xff" + bytes(4)
"""The frame that asks a client to begin no further calls on its connection."""
_PING_FRAME: Final = b"\0\0\x08\x06\0\0\0\0\0synergai"
HEADER_BYTES: Final = 9
MAX_FRAME: Final = 16384
"""Bytes of a frame after its header."""
HEADERS, RST_STREAM, PING = 0x1, 0x3, 0x6
END_HEADERS = 0x4
_END_STREAM = _ACK = 0x1


class OpenCalls:
    """The calls that are open on one connection."""

    def __init__(self) -> None:
        self._idle_since: float | None = time.monotonic()
        self._open: dict[int, Callable[[], None] | None] = {}
        self._last = 0
        self._pings = 0
        self._to_come = len(PREFACE)
        # What was received of a frame of the server.
        self._held, self._to_send = b"", 0
        self._answered = False

    @property
    def idle_since(self) -> float | None:
        """When the last call ended, by the monotonic clock; None during a call or a frame."""
        return None if self._held or self._to_send else self._idle_since

    @property
    def between_frames(self) -> bool:
        """Whether the front can send a frame of its own, after the first one of the server."""
        return self._answered and not (self._held or self._to_send)

    @property
    def ended(self) -> bool:
        """Whether all calls have ended, and the client has received all pings."""
        return self.between_frames and not self._open and self._pings <= 0

    def end_soon(self) -> bytes:
        """Return frames that ask the client to begin no further calls.

        It acknowledges the ping among them behind the calls that it had begun before.
        """
        self._pings += 1
        return GOAWAY + _PING_FRAME

    def close(self) -> None:
        """End all calls: the client has left."""
        for stream in tuple(self._open):
            self._end(stream)

    def receive(self, data: bytes) -> bytes:
        """Return what to pass on of bytes from the client.

        Args:
            data: the bytes, in which the headers of frames are complete, and blocks of header
                fields as well.

        Raises:
            InvalidInput: the client may not send them.
        """
        at, size = self._to_come, len(data)
        while at < size:
            length, kind, flags = int.from_bytes(data[at : at + 3]), data[at + 3], data[at + 4]
            if kind in (HEADERS, RST_STREAM):
                stream = int.from_bytes(data[at + 5 : at + HEADER_BYTES]) & 0x7FFFFFFF
                (self._begin if kind == HEADERS else self._end)(stream)
            elif kind == PING:
                self._count_ping(flags)
            at += HEADER_BYTES + length
        self._to_come = at - size
        return data

    def respond(self, data: bytes) -> bytes:
        """Return what to pass on of bytes from the server."""
        data = self._held + data
        at, size = self._to_send, len(data)
        passed: list[bytes] = []
        copied = 0
        while at + HEADER_BYTES <= size:
            length, kind, flags = int.from_bytes(data[at : at + 3]), data[at + 3], data[at + 4]
            end = at + HEADER_BYTES + length
            if kind == HEADERS and end > size:
                break
            if kind == RST_STREAM or (kind <= HEADERS and flags & _END_STREAM):
                stream = int.from_bytes(data[at + 5 : at + HEADER_BYTES])
                if kind == HEADERS and flags & END_HEADERS:
                    field = self._trailer(stream)
                    if field and length + len(field) <= MAX_FRAME:
                        passed += data[copied:at], (length + len(field)).to_bytes(3)
                        passed += data[at + 3 : end], field
                        copied = end
                self._end(stream)
            elif kind == PING and not flags & _ACK:
                self._pings += 1
            at = end
        self._held, self._to_send = data[at:], max(0, at - size)
        self._answered = True
        return b"".join((*passed, data[copied:at]))

    def _trailer(self, _stream: int) -> bytes:
        """Return an encoded field to add to the trailers of a call; empty for none."""
        return b""

    def _begin(self, stream: int) -> None:
        if stream > self._last:  # these are not trailers
            self._last = stream
            self._open[stream] = None
            self._idle_since = None

    def _end(self, stream: int) -> None:
        if stream in self._open:
            callback = self._open.pop(stream)
            if not self._open:
                self._idle_since = time.monotonic()
            if callback is not None:
                callback()

    def _count_ping(self, flags: int) -> None:
        """Count a ping of the client, which may acknowledge one that it received."""
        if flags & _ACK:
            self._pings -= 1
