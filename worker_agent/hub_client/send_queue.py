"""Queue of messages to the gateway, merged into one write per turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from msgspec import Struct

from synergai.protocol.work_messages import merge_reports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

BATCH_BYTES: Final = 4 << 20
"""Size limit of a merged message; a larger single message is sent alone."""

T = TypeVar("T")


class Merging(Struct, Generic[T], frozen=True):
    """How messages that wait together become one.

    Attributes:
        merge: returns one message with the contents of several.
        size: returns the approximate size of a message in bytes.
    """

    merge: Callable[[Sequence[T]], T]
    size: Callable[[T], int]


MERGED_REPORTS: Final = Merging(merge_reports, lambda reports: reports.response_bytes)


class MergingSendQueue(Generic[T]):
    """FIFO queue of messages of one type.

    Args:
        merging: how messages that wait together are merged; None to send them separately.
    """

    def __init__(self, merging: Merging[T] | None = None) -> None:
        self._merging = merging
        self._messages: deque[T] = deque()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, message: T) -> None:
        """Enqueue `message`."""
        self._messages.append(message)
        self._wake.set()
        self._empty.clear()

    async def send_all(self, write: Callable[[T], Awaitable[object]]) -> None:
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

    def _next_batch(self) -> T:
        first = self._messages.popleft()
        if self._merging is None or not self._messages:
            return first
        size_of = self._merging.size
        batch = [first]
        size = size_of(first)
        while self._messages and size + size_of(self._messages[0]) <= BATCH_BYTES:
            batch.append(self._messages.popleft())
            size += size_of(batch[-1])
        return self._merging.merge(batch)
