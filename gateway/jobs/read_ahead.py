"""Messages of a client, read while earlier ones are written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

AHEAD_BYTES: Final = 16 * 1024 * 1024
"""Bytes of an upload in memory, unless a single message is larger."""


class ReadAhead:
    """Reads messages of a client ahead while earlier ones are written."""

    def __init__(self, messages: AsyncIterator[bytes], idle_s: float) -> None:
        self._messages = messages
        self._idle_s = idle_s
        self._read: list[bytes] = []
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    async def batches(self, first: bytes) -> AsyncGenerator[list[bytes], None]:
        """Yield `first`, and then in each batch all messages that were read since the last one."""
        reader = asyncio.create_task(self._read_all())
        reader.add_done_callback(lambda _: self._arrived.set())
        try:
            self._read.append(first)
            self._arrived.set()
            del first
            while True:
                try:
                    async with asyncio.timeout(self._idle_s):
                        await self._arrived.wait()
                except TimeoutError:
                    raise Unavailable(
                        f"no message has arrived for {self._idle_s:g} s; continue the upload with "
                        "the next one"
                    ) from None
                self._arrived.clear()
                batch, self._read, self._bytes = self._read, [], 0
                self._room.set()
                if batch:
                    yield batch
                del batch  # the next one may be a long time coming
                if reader.done():
                    if self._read:
                        yield self._read
                    reader.result()
                    return
        finally:
            reader.cancel()
            await asyncio.wait([reader])

    async def _read_all(self) -> None:
        async for message in self._messages:
            while self._read and self._bytes + len(message) > AHEAD_BYTES:
                self._room.clear()
                await self._room.wait()
            self._read.append(message)
            self._bytes += len(message)
            self._arrived.set()
            del message
