"""Limit for work that runs concurrently with other work, or alone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Slots:
    """Slots for work; `one` is a context that waits for a slot, and holds it."""

    def __init__(self, count: int) -> None:
        self.one = asyncio.Semaphore(count)
        self._count = count
        self._alone = asyncio.Lock()

    @asynccontextmanager
    async def all(self) -> AsyncGenerator[None]:
        """Wait for all slots, and hold them, so that nothing else runs."""
        async with self._alone, AsyncExitStack() as stack:
            for _ in range(self._count):
                await stack.enter_async_context(self.one)
            yield
