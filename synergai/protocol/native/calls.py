"""What a native server lacks, added to the frames of HTTP/2 that pass between it and its clients.

It does not know on whose connection a call arrives, reads and decompresses messages of any size,
does not say when a client has read a response, and refuses to send metadata that gRPC reserves.
Here, each call gets a header field with the name of its client, messages are limited, the ends of
responses are noticed, and trailers get such metadata. Compressed messages are marked as not
compressed, for handlers to decompress them within the limit.

Remove it once the native server does all this itself.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from synergai.errors import InvalidInput
from synergai.protocol.grpcio.open_calls import (
    END_HEADERS,
    HEADER_BYTES,
    HEADERS,
    MAX_FRAME,
    PING,
    RST_STREAM,
    OpenCalls,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

_KEY: Final = b"synergai-peer"
"""Key of the metadata with name and stream. Clients may send it as well; the last one is ours."""
_PREFIX: Final = 5
"""Bytes before a message of gRPC: whether it is compressed, and its length."""
_GZIP: Final = b"\x1f\x8b"
_GZIP_FORMAT: Final = 16 + zlib.MAX_WBITS
_DATA, _CONTINUATION = 0x0, 0x9
_PADDED = 0x8

_connections: Final[dict[str, NativeCalls]] = {}
"""The connections by the names of their clients."""


def client_name(context: Any) -> str:
    """Return the name of the client of a call."""
    return _mark(context)[0]


def on_ended(context: Any, callback: Callable[[], None]) -> None:
    """Call back once the whole response of a call has been sent, or its client has left."""
    name, stream = _mark(context)
    connection = _connections.get(name)
    if connection is None:
        callback()
    else:
        connection.on_ended(stream, callback)


def add_trailer(context: Any, key: str, value: str) -> None:
    """Have the response of a call end with metadata."""
    name, stream = _mark(context)
    if (connection := _connections.get(name)) is not None:
        connection.add_trailer(stream, key, value)


def _mark(context: Any) -> tuple[str, int]:
    # Of several values, a dictionary keeps the last one.
    name, _, stream = dict(context.invocation_metadata())[_KEY.decode()].rpartition(";")
    return name, int(stream)


def decompressing(
    handler: grpc.RpcMethodHandler[Any, Any], max_bytes: int
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return a handler like another one that also takes requests that are compressed."""
    fields: Any = handler  # a named tuple, which the stubs do not say
    read: Callable[[bytes], object] = fields.request_deserializer

    def deserialise(data: bytes) -> object:
        # No message of protobuf begins like that: field 3 would have a type that does not exist.
        return read(_decompressed(data, max_bytes) if data.startswith(_GZIP) else data)

    result: grpc.RpcMethodHandler[Any, Any] = fields._replace(request_deserializer=deserialise)
    return result


def _decompressed(data: bytes, max_bytes: int) -> bytes:
    """Return data without its compression; the data itself, which is malformed, if it is faulty."""
    decompressor = zlib.decompressobj(_GZIP_FORMAT)
    try:
        decompressed = decompressor.decompress(data, max_bytes)
    except zlib.error:
        return data
    return decompressed if decompressor.eof else data


class NativeCalls(OpenCalls):
    """The calls of one connection, which pass in frames.

    Args:
        name: name of the client.
        max_bytes: largest message of a client.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        super().__init__()
        self._name = name
        self._max_bytes = max_bytes
        self._trailers: dict[int, bytes] = {}
        self._messages: dict[int, tuple[int, bytes]] = {}
        # The stream of the data that is to come.
        self._stream = 0
        _connections[name] = self

    def close(self) -> None:
        """End all calls: the client has left."""
        del _connections[self._name]
        super().close()

    def on_ended(self, stream: int, callback: Callable[[], None]) -> None:
        """Call back once a call has ended."""
        if stream in self._open:
            self._open[stream] = callback
        else:
            callback()

    def add_trailer(self, stream: int, key: str, value: str) -> None:
        """Have the response of a call end with metadata."""
        if stream in self._open:
            self._trailers[stream] = _field(key.encode(), value.encode())

    def receive(self, data: bytes) -> bytes:
        """Return what to pass on of bytes from the client.

        Args:
            data: the bytes, in which the headers of frames are complete, and blocks of header
                fields as well.

        Raises:
            InvalidInput: they have a message that is too large.
        """
        size = len(data)
        at = min(self._to_come, size)
        if self._stream:
            data = self._read(self._stream, data, 0, at)
        passed: list[bytes] = []
        copied = 0
        end = self._to_come
        while at < size:
            length, kind, flags = int.from_bytes(data[at : at + 3]), data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + HEADER_BYTES]) & 0x7FFFFFFF
            start, end = at + HEADER_BYTES, at + HEADER_BYTES + length
            self._stream = 0
            if kind == _DATA:
                if flags & _PADDED:
                    raise InvalidInput("padded data")
                self._stream = stream
                data = self._read(stream, data, start, min(end, size))
            elif kind == HEADERS:
                self._begin(stream)
                field = _field(_KEY, f"{self._name};{stream}".encode())
                if length + len(field) <= MAX_FRAME:
                    block_end = end - (data[start] if flags & _PADDED else 0)
                    passed += data[copied:at], (length + len(field)).to_bytes(3)
                    passed += data[at + 3 : block_end], field
                    copied = block_end
                else:
                    passed += data[copied : at + 4], bytes([flags & ~END_HEADERS])
                    passed += data[at + 5 : end], len(field).to_bytes(3)
                    passed += bytes([_CONTINUATION, END_HEADERS]), stream.to_bytes(4), field
                    copied = end
            elif kind == RST_STREAM:
                self._end(stream)
            elif kind == PING:
                self._count_ping(flags)
            at = end
        self._to_come = max(0, end - size)
        return b"".join((*passed, data[copied:])) if passed else data

    def _trailer(self, stream: int) -> bytes:
        return self._trailers.get(stream, b"")

    def _end(self, stream: int) -> None:
        self._messages.pop(stream, None)
        self._trailers.pop(stream, None)
        super()._end(stream)

    def _read(self, stream: int, data: bytes, at: int, end: int) -> bytes:
        """Check the messages in bytes of a call; return the data with none marked as compressed."""
        if stream not in self._open:
            return data
        left, prefix = self._messages.get(stream, (0, b""))
        while at < end:
            taken = min(left or _PREFIX - len(prefix), end - at)
            if left:
                left -= taken
            else:
                if not prefix and data[at]:
                    data = data[:at] + b"\0" + data[at + 1 :]
                prefix += data[at : at + taken]
                if len(prefix) == _PREFIX:
                    left, prefix = int.from_bytes(prefix[1:]), b""
                    # It refuses messages up to this size itself, once it has read them.
                    if left > 2 * self._max_bytes:
                        raise InvalidInput(f"a message of {left:,} bytes")
            at += taken
        self._messages[stream] = left, prefix
        return data


def _field(key: bytes, value: bytes) -> bytes:
    """Return a field of HPACK that no table remembers."""
    return b"\0%c%b%c%b" % (len(key), key, len(value), value)
