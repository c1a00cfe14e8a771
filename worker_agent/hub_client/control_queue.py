"""Queue of control messages to the gateway."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class ControlQueue:
    """FIFO queue of serialised ``AgentControl`` messages."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, message: bytes) -> None:
        """Enqueue `message`."""
        self._messages.append(message)
        self._wake.set()
        self._empty.clear()

    async def send_all(self, write: Callable[[bytes], Awaitable[None]]) -> NoReturn:
        """Write messages as they arrive, until cancelled."""
        while True:
            await self._wake.wait()
            while self._messages:
                await write(self._messages.popleft())
            self._wake.clear()
            self._empty.set()

    async def wait_empty(self) -> None:
        """Return once every message has been written."""
        await self._empty.wait()
