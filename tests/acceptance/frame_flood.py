"""Flood a gRPC port with frames of HTTP/2 from a few connections, as fast as it takes the bytes.

    python -m tests.acceptance.frame_flood HOST:PORT SECONDS KIND [CA]

With the file of an authority, the connections are encrypted.

A connection that the server closes is opened again. Prints how much was sent, as JSON.
"""

import itertools
import json
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from tests import http2
from tests.http2 import frame

CONNECTIONS: Final = 4
_CHUNK: Final = 64 << 10
_PATH: Final = "/grpc.health.v1.Health/Check"
_LIVE: Final = "/inference.GRPCInferenceService/ServerLive"
_CONTINUATION: Final = 9
_UNKNOWN: Final = 0xFA
_MAX_FRAME: Final = 16384


def _repeated(one: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.repeat(one * max(1, _CHUNK // len(one)))


def _hpack_bombs() -> Iterator[bytes]:
    """Yield calls with a field of 4,000 bytes, which takes one byte to repeat."""
    field = b"\x40\x01x" + b"\x7f" + _varint(4000 - 127) + b"v" * 4000
    yield http2.headers(1, _PATH, block=field)
    for stream in itertools.count(3, 2):
        yield http2.headers(stream, _PATH, block=b"\xbe" * (_MAX_FRAME - 200))


def _many_headers() -> Iterator[bytes]:
    """Yield calls with as many small fields as fit into a frame."""
    yield http2.headers(1, _PATH, block=b"\x40\x01x\x01v")
    for stream in itertools.count(3, 2):
        yield http2.headers(stream, _PATH, block=b"\xbe" * (_MAX_FRAME - 200))


def _continuations() -> Iterator[bytes]:
    """Yield a call whose headers never end."""
    yield http2.headers(1, _PATH, ends=False)
    yield from itertools.repeat(frame(_CONTINUATION, 0, 1, b"\0\x01x\x01v" * 3000))


def _empty_data() -> Iterator[bytes]:
    """Yield a call whose message never begins."""
    yield http2.headers(1, _PATH)
    yield from itertools.repeat(frame(http2.DATA, 0, 1) * (_CHUNK // 9))


def _resets() -> Iterator[bytes]:
    """Yield calls that are reset at once."""
    for first in itertools.count(1, 200):
        yield b"".join(
            http2.headers(stream, _PATH) + http2.reset(stream)
            for stream in range(first, first + 200, 2)
        )


def _calls() -> Iterator[bytes]:
    """Yield calls that cost a client next to nothing."""
    for first in itertools.count(1, 200):
        yield b"".join(
            http2.headers(stream, _LIVE) + http2.message(stream, b"")
            for stream in range(first, first + 200, 2)
        )


def _begun_calls() -> Iterator[bytes]:
    """Yield calls that are reset after the first byte of their message."""
    for first in itertools.count(1, 200):
        yield b"".join(
            http2.headers(stream, _LIVE) + frame(http2.DATA, 0, stream, b"\0") + http2.reset(stream)
            for stream in range(first, first + 200, 2)
        )


def _earned_pings() -> Iterator[bytes]:
    """Yield a call whose message arrives in single bytes, with pings between them."""
    yield http2.headers(1, _LIVE)
    one = frame(http2.DATA, 0, 1, b"\0") + 4 * frame(http2.PING, 0, 0, bytes(8))
    yield from itertools.repeat(one * (_CHUNK // len(one)))


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


KINDS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "ping": _repeated(frame(http2.PING, 0, 0, bytes(8))),
    "hpack": _hpack_bombs,
    "fields": _many_headers,
    "unknown": _repeated(frame(_UNKNOWN, 0, 0)),
    "unknown-large": _repeated(frame(_UNKNOWN, 0, 0, bytes(_MAX_FRAME))),
    "settings": _repeated(frame(http2.SETTINGS, 0, 0)),
    "windows": _repeated(frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))),
    "priority": _repeated(frame(2, 0, 1, bytes(5))),
    "continuation": _continuations,
    "data": _empty_data,
    "resets": _resets,
    "calls": _calls,
    "begun": _begun_calls,
    "earned": _earned_pings,
}


class Flood:
    """A flood from `CONNECTIONS` connections, each in a thread."""

    def __init__(self, address: str, seconds: float, kind: str, authority: str | None) -> None:
        self._address = address
        self._ends_at = time.monotonic() + seconds
        self._kind = kind
        self._tls = None if authority is None else ssl.create_default_context(cafile=authority)
        self._lock = threading.Lock()
        self.connections = self.sent = 0

    def run(self) -> None:
        """Flood until the time is over."""
        threads = [threading.Thread(target=self._flood) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _flood(self) -> None:
        connections = sent = 0
        while time.monotonic() < self._ends_at:
            try:
                with http2.Http2Connection(self._address, tls=self._tls) as connection:
                    connections += 1
                    for chunk in KINDS[self._kind]():
                        connection.send([chunk])
                        sent += len(chunk)
                        if connection.is_closed() or time.monotonic() > self._ends_at:
                            break
            except OSError:
                pass
        with self._lock:
            self.connections += connections
            self.sent += sent


if __name__ == "__main__":
    address, seconds, kind, *authority = sys.argv[1:]
    flood = Flood(address, float(seconds), kind, authority[0] if authority else None)
    flood.run()
    print(json.dumps({"connections": flood.connections, "megabytes": flood.sent / 1e6}))
