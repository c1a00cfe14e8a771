"""Queue of serialised messages to the gateway, merged into one write per turn of the event loop.

Concatenating serialised protobuf messages of one type merges them. A report is therefore
serialised once, when it is made, and its tensors are never parsed again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BATCH_BYTES: Final = 4 << 20
"""Size limit of a merged message; a larger single message is sent alone."""


class MergingSendQueue:
    """FIFO queue of serialised messages of one type.

    Args:
        merge: whether to concatenate messages that wait together.
    """

    def __init__(self, *, merge: bool) -> None:
        self._merge = merge
        self._messages: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, message: bytes) -> None:
        """Enqueue `message`."""
        self._messages.append(message)
        self._wake.set()
        self._empty.clear()

    async def send_all(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Write messages as they arrive, until cancelled."""
        while True:
            await self._wake.wait()
            while self._messages:
                await write(self._next_batch())
            self._wake.clear()
            self._empty.set()

    async def wait_empty(self) -> None:
        """Return once every message has been written."""
        await self._empty.wait()

    def _next_batch(self) -> bytes:
        batch = [self._messages.popleft()]
        size = len(batch[0])
        while self._merge and self._messages and size + len(self._messages[0]) <= BATCH_BYTES:
            batch.append(self._messages.popleft())
            size += len(batch[-1])
        return b"".join(batch)
