"""How much the gateway takes on: refused at the door what it could not hold."""

from __future__ import annotations

import asyncio

from synergai.errors import Overloaded, Unavailable


class Admission:
    """Counts the clients that wait on the line, and the bytes that are held for them.

    Args:
        max_requests: at most so many at a time.
        max_bytes: at most so many bytes of inputs at a time; one request alone may exceed them.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._idle = asyncio.Event()
        self._idle.set()
        self.open = True
        self.requests = 0
        self.bytes = 0

    def check_open(self) -> None:
        """Check that new work may come.

        Raises:
            Unavailable: the gateway is about to stop.
        """
        if not self.open:
            raise Unavailable("the gateway is stopping; try another one, or later")

    def enter(self, size_bytes: int) -> None:
        """Let a request in.

        Raises:
            Unavailable: the gateway is about to stop.
            Overloaded: it holds as much as it may.
        """
        self.check_open()
        if self.requests >= self._max_requests:
            raise Overloaded(f"{self.requests:,} requests are waiting already; try later")
        if self.requests and self.bytes + size_bytes > self._max_bytes:
            raise Overloaded(f"requests of {self.bytes:,} bytes are waiting already; try later")
        self.requests += 1
        self.bytes += size_bytes
        self._idle.clear()

    def leave(self, size_bytes: int) -> None:
        """Let the place of a request of this size go."""
        self.requests -= 1
        self.bytes -= size_bytes
        if not self.requests:
            self._idle.set()

    def close(self) -> None:
        """Let nobody in any more."""
        self.open = False

    async def wait_idle(self) -> None:
        """Return once nobody waits on the line."""
        await self._idle.wait()
