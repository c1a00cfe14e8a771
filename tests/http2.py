"""Frames of HTTP/2, enough to open gRPC calls that no well-behaved client opens."""

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS = 0x1, 0x4
CANCEL: Final = 8
_STATUS: Final = b"grpc-status"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(
    stream: int, path: str, *more: tuple[str, str], block: bytes = b"", ends: bool = True
) -> bytes:
    """Return the frame that opens a gRPC call; surrogates are bytes that are not UTF-8.

    Args:
        stream: its stream.
        path: its path.
        *more: further fields.
        block: further fields, encoded.
        ends: whether no continuation follows.
    """
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    )
    payload = b"".join(_literal(*field) for field in fields) + block
    return frame(HEADERS, END_HEADERS if ends else 0, stream, payload)


def message(stream: int, data: bytes, *, last: bool = True) -> bytes:
    payload = struct.pack(">BI", 0, len(data)) + data
    return frame(DATA, END_STREAM if last else 0, stream, payload)


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


class Http2Connection:
    """A connection that sends frames and, unless told to, reads nothing."""

    def __init__(
        self, address: str, window: int | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60.0)
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        settings = b"" if window is None else struct.pack(">HI", 4, window)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))

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


def _literal(name: str, value: str) -> bytes:
    """Return a header field as a literal that is not indexed."""
    texts = (text.encode(errors="surrogateescape") for text in (name, value))
    return b"\0" + b"".join(bytes([len(text)]) + text for text in texts)
