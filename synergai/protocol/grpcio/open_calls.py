"""The calls that are open on a connection, by the frames of HTTP/2 that pass.

A server of grpc.aio that stops ends calls that have just arrived with CANCELLED, after which
clients do not try again. A front therefore stops before its server: it asks clients to begin no
further calls, and closes each connection once the last call on it has been answered.

Remove it together with `front`.
"""

from __future__ import annotations

import time
from typing import Final

from synergai.protocol.grpcio.http2_limits import PREFACE

GOAWAY: Final = b"\0\0\x08\x07\0\0\0\0\0" + b"\x7f\xff\xff\xff" + bytes(4)
"""The frame that asks a client to begin no further calls on its connection."""
END_SOON: Final = GOAWAY + b"\0\0\x08\x06\0\0\0\0\0synergai"
"""The same, and a ping."""
HEADER_BYTES: Final = 9
HEADERS, RST_STREAM, PING = 0x1, 0x3, 0x6
_END_STREAM = _ACK = 0x1


class OpenCalls:
    """The calls that are open on one connection."""

    def __init__(self) -> None:
        self._idle_since: float | None = time.monotonic()
        self._open: set[int] = set()
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
        return END_SOON

    def close(self) -> None:
        """End all calls: the client has left."""
        self._open.clear()

    def receive(self, data: bytes) -> None:
        """Follow bytes of the client."""
        at, size = self._to_come, len(data)
        while at < size:
            length, kind, flags = int.from_bytes(data[at : at + 3]), data[at + 3], data[at + 4]
            if kind in (HEADERS, RST_STREAM):
                stream = int.from_bytes(data[at + 5 : at + HEADER_BYTES]) & 0x7FFFFFFF
                (self._begin if kind == HEADERS else self._end)(stream)
            elif kind == PING and flags & _ACK:
                self._pings -= 1
            at += HEADER_BYTES + length
        self._to_come = at - size

    def respond(self, data: bytes) -> bytes:
        """Return what to pass on of bytes from the server: up to the beginning of a frame."""
        data = self._held + data
        at, size = self._to_send, len(data)
        while at + HEADER_BYTES <= size:
            length, kind, flags = int.from_bytes(data[at : at + 3]), data[at + 3], data[at + 4]
            if kind == RST_STREAM or (kind <= HEADERS and flags & _END_STREAM):
                self._end(int.from_bytes(data[at + 5 : at + HEADER_BYTES]))
            elif kind == PING and not flags & _ACK:
                self._pings += 1
            at += HEADER_BYTES + length
        self._held, self._to_send = data[at:], max(0, at - size)
        self._answered = True
        return data[:at]

    def _begin(self, stream: int) -> None:
        if stream > self._last:  # these are not trailers
            self._last = stream
            self._open.add(stream)
            self._idle_since = None

    def _end(self, stream: int) -> None:
        self._open.discard(stream)
        if not self._open:
            self._idle_since = time.monotonic()
