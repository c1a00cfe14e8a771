"""Messages on their way to the gateway, merged into one per turn of the event loop.

Serialised protobuf messages of one type are merged by putting one behind the other, so that a
report is serialised once, when it is made, and tensors in it are not parsed again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BATCH_BYTES: Final = 4 << 20
"""A merged message grows up to here; one that is larger by itself goes alone."""


class MergingSendQueue:
    """Serialised messages of one type, in order.

    Args:
        merge: whether messages may be put together.
    """

    def __init__(self, *, merge: bool) -> None:
        self._merge = merge
        self._parts: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, message: bytes) -> None:
        """Send `message` soon, after those before it."""
        self._parts.append(message)
        self._wake.set()
        self._empty.clear()

    async def send_all(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Write messages as they come, until cancelled."""
        while True:
            await self._wake.wait()
            while self._parts:
                await write(self._take())
            self._wake.clear()
            self._empty.set()

    async def wait_empty(self) -> None:
        """Return once everything has been written."""
        await self._empty.wait()

    def _take(self) -> bytes:
        batch = [self._parts.popleft()]
        size = len(batch[0])
        while self._merge and self._parts and size + len(self._parts[0]) <= BATCH_BYTES:
            batch.append(self._parts.popleft())
            size += len(batch[-1])
        return b"".join(batch)
