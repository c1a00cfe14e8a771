"""Return of freed memory to the kernel while a process is idle.

`retain_freed_memory` lets the C library keep freed memory for the next message. It may be hours
until there is another large one, so an idle process gives the memory back.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from synergai.runtime.memory import rss_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.runtime.heap import GlibcHeap

INTERVAL_S: Final = 15.0
IDLE_SHARE: Final = 0.3
"""Share of a processor below which a process counts as idle: a trim stalls its threads for some
milliseconds, and the next large message page-faults its memory in again."""
RETAINED_BYTES: Final = 16 << 20
"""Freed memory that is not worth a trim."""


class IdleTrimmer:
    """Trims a heap if the process was idle since the last look at it."""

    def __init__(
        self,
        heap: GlibcHeap,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
        resident: Callable[[], int] = rss_bytes,
    ) -> None:
        self._heap = heap
        self._clock = clock
        self._cpu = cpu
        self._seen_at = clock()
        self._used_s = cpu()
        self._resident = resident
        self._resident_after = 0

    def look(self) -> None:
        """Trim the heap if that is worth it and disturbs nothing."""
        now, used_s = self._clock(), self._cpu()
        busy = used_s - self._used_s > IDLE_SHARE * (now - self._seen_at)
        self._seen_at, self._used_s = now, used_s
        # Pages that were returned still count as free, but are not resident.
        grown = self._resident() > self._resident_after + RETAINED_BYTES
        if grown and not busy and self._heap.free_bytes() > RETAINED_BYTES:
            self._heap.trim()
            self._resident_after = self._resident()

    async def run(self) -> None:
        """Look at the heap from time to time until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await asyncio.to_thread(self.look)
