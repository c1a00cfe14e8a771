"""Frames of HTTP/2 (RFC 9113), enough to open gRPC calls that no well-behaved client opens."""

import contextlib
import select
import socket
import ssl
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Final, NamedTuple, Self

from hpack.hpack import encode_integer

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
CANCEL: Final = 8
HEADER_BYTES: Final = 9
LARGEST_FRAME: Final = 16_384
"""Bytes of a frame, unless a setting allows more."""
_STATUS: Final = b"grpc-status"


class Frame(NamedTuple):
    """A frame that was received."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(
    stream: int,
    path: str,
    *more: tuple[str, str],
    block: bytes = b"",
    ends: bool = True,
    scheme: str = "http",
) -> bytes:
    """Return the frame that opens a gRPC call; surrogates are bytes that are not UTF-8.

    Args:
        stream: its stream.
        path: its path.
        *more: further fields.
        block: further fields, encoded.
        ends: whether no continuation follows.
        scheme: of the connection; proxies check it.
    """
    payload = encoded((*call_fields(path, scheme), *more)) + block
    return frame(HEADERS, END_HEADERS if ends else 0, stream, payload)


def in_frames(headers: bytes, size: int = LARGEST_FRAME) -> bytes:
    """Return a frame that opens a call as frames of up to this size."""
    flags, stream, block = headers[4], int.from_bytes(headers[5:9]), headers[HEADER_BYTES:]
    *parts, last = [block[at : at + size] for at in range(0, len(block), size)]
    frames = b"".join(
        frame(CONTINUATION if at else HEADERS, 0 if at else flags & ~END_HEADERS, stream, part)
        for at, part in enumerate(parts)
    )
    end = frame(CONTINUATION if parts else HEADERS, flags, stream, last)
    return frames + end


def call_fields(path: str, scheme: str = "http") -> tuple[tuple[str, str], ...]:
    """Return the fields that every gRPC call has."""
    return (
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )


def encoded(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return fields as literals that are not indexed; surrogates are bytes that are not UTF-8."""
    block = bytearray()
    for field in fields:
        block += b"\0"
        for text in (each.encode(errors="surrogateescape") for each in field):
            block += encode_integer(len(text), 7) + text
    return bytes(block)


def message(stream: int, data: bytes, *, last: bool = True) -> bytes:
    payload = struct.pack(">BI", 0, len(data)) + data
    return frame(DATA, END_STREAM if last else 0, stream, payload)


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


class Http2Connection:
    """A connection that sends frames and, unless told to, reads nothing."""

    def __init__(
        self,
        address: str,
        window: int | None = None,
        tls: ssl.SSLContext | None = None,
        opening: bytes | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        if opening is None:
            settings = b"" if window is None else struct.pack(">HI", 4, window)
            opening = PREFACE + frame(SETTINGS, 0, 0, settings)
        self._received = bytearray()
        self._socket.sendall(opening)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    @property
    def own_address(self) -> tuple[str, int]:
        """Host and port of the client."""
        host, port = self._socket.getsockname()
        return host, port

    def send(self, frames: Iterable[bytes]) -> None:
        """Send frames.

        Raises:
            OSError: the server has closed the connection.
        """
        self._socket.sendall(b"".join(frames))

    def read(self) -> bytes:
        """Read until the server has begun to answer a call; return what it sent."""
        received, searched = bytearray(), 0
        while received.find(_STATUS, searched) < 0 and (data := self._socket.recv(1 << 16)):
            searched = max(0, len(received) - len(_STATUS))
            received += data
        return bytes(received)

    def read_frame(self, within_s: float = 60.0) -> Frame | None:
        """Read the next frame of the server; None if it has closed the connection.

        Raises:
            TimeoutError: nothing arrived in this time.
        """
        self._socket.settimeout(within_s)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            head = self._take(HEADER_BYTES)
            high, low, kind, flags, stream = struct.unpack(">HBBBI", head)
            payload = self._take(high << 8 | low)
            return Frame(kind, flags, stream & 0x7FFFFFFF, payload)
        return None

    def has_frames(self) -> bool:
        """Return whether something can be read without waiting."""
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        return bool(self._received) or pending or bool(select.select([self._socket], [], [], 0)[0])

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            self._received += data
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def is_closed(self) -> bool:
        """Discard what the server sent; return whether it has closed the connection."""
        self._socket.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
                while self._socket.recv(1 << 20):
                    pass
                return True
        except OSError:
            return True
        finally:
            self._socket.settimeout(60.0)
        return False
