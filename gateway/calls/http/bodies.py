"""Reading of request bodies with limits on size, memory and time."""

from __future__ import annotations

import asyncio
import math
import zlib
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from synergai.errors import DeadlineExceeded, InvalidInput, Overloaded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

GRACE_S: Final = 10.0
"""Time to send a body of any size."""
MIN_BYTES_PER_S: Final = 16 * 1024
"""Rate at which a request body has to arrive after that, and at which responses have to be read, so
that a slow client cannot hold a connection."""
_MAX_RATIO: Final = 1032
"""Highest compression ratio of zlib."""
_ENCODINGS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""``wbits`` argument of zlib by content encoding."""


class Bodies:
    """Reads request bodies, within a limit for each and for all at a time.

    A single body may exceed the latter. Sizes are those after decompression.
    """

    def __init__(self, max_bytes: int, max_total_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.max_total_bytes = max_total_bytes
        self.held_bytes = 0

    @asynccontextmanager
    async def receive(
        self, request: Request, timeout_s: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Receive the body of `request`; its room is reserved while the context is open."""
        room = _Room(self)
        try:
            wbits = _wbits(request.headers.get("content-encoding", ""))
            body = await self._read(request, room, timeout_s)
            if wbits is not None:
                room.reserve(min(self.max_bytes, len(body) * _MAX_RATIO) - len(body))
                body = await asyncio.to_thread(_decompress, body, wbits, self.max_bytes)
                room.shrink(len(body))
            yield body
        finally:
            room.shrink(0)

    async def _read(self, request: Request, room: _Room, timeout_s: float | None) -> bytes:
        declared = request.headers.get("content-length")
        # The HTTP parser accepts numbers only. An announced size reserves no memory: a client
        # could exhaust the memory without sending anything.
        if declared is not None and int(declared) > self.max_bytes:
            raise too_large(self.max_bytes)
        chunks = []
        received = 0
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        deadline = math.inf if timeout_s is None else begun_at + timeout_s
        try:
            async with asyncio.timeout_at(min(deadline, begun_at + GRACE_S)) as limit:
                more = True
                while more:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    chunk = message.get("body", b"")
                    more = message.get("more_body", False)
                    room.reserve(len(chunk))
                    received += len(chunk)
                    chunks.append(chunk)
                    expected_by = begun_at + GRACE_S + received / MIN_BYTES_PER_S
                    limit.reschedule(min(deadline, expected_by))
        except TimeoutError:
            if limit.when() == deadline:  # the clock may be a tick behind
                raise DeadlineExceeded("the deadline passed before the body was complete") from None
            raise HTTPException(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the body arrived too slowly: {received:,} bytes in "
                f"{loop.time() - begun_at:.0f} s",
                {"connection": "close"},
            ) from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _Room:
    """Memory reserved for one body."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._bytes = 0

    def reserve(self, count: int) -> None:
        bodies = self._bodies
        if self._bytes + count > bodies.max_bytes:
            raise too_large(bodies.max_bytes)
        others = bodies.held_bytes - self._bytes
        if others and bodies.held_bytes + count > bodies.max_total_bytes:
            raise Overloaded(
                f"bodies of {bodies.held_bytes:,} bytes are held, near the limit; try later"
            )
        self._bytes += count
        bodies.held_bytes += count

    def shrink(self, count: int) -> None:
        """Free all but `count` bytes."""
        self._bodies.held_bytes -= self._bytes - count
        self._bytes = count


def too_large(max_bytes: int) -> HTTPException:
    return HTTPException(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {max_bytes:,} bytes, the limit (--max-message-bytes)",
    )


def _wbits(encoding: str) -> int | None:
    """Return zlib's argument for a content encoding; None for no encoding."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _ENCODINGS:
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the content encoding {encoding!r} is not supported; use gzip, deflate or none",
            {"accept-encoding": "gzip, deflate"},
        )
    return _ENCODINGS[name]


def _decompress(body: bytes, wbits: int, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(wbits)
    try:
        content = stream.decompress(body, max_bytes)
        if not stream.eof and stream.decompress(stream.unconsumed_tail, 1):
            raise too_large(max_bytes)
    except zlib.error:
        raise InvalidInput("the compressed body is damaged") from None
    if not stream.eof or stream.unused_data:
        raise InvalidInput("the compressed body is truncated, or followed by other data")
    return content
