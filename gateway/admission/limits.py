"""Limits on the requests that the gateway holds at a time."""

from __future__ import annotations

import asyncio

from synergai.errors import Overloaded, Unavailable


class Admission:
    """Counts requests in flight and the bytes of their inputs, which a single one may exceed."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._idle = asyncio.Event()
        self._idle.set()
        self.open = True
        self.requests = 0
        self.bytes = 0

    def check_open(self) -> None:
        """Check that new work is accepted."""
        if not self.open:
            raise Unavailable("the gateway is stopping; try another one, or later")

    def acquire(self, size_bytes: int) -> None:
        """Reserve room for a request."""
        self.check_open()
        if self.requests >= self._max_requests:
            raise Overloaded(f"{self.requests:,} requests are in flight, the limit; try later")
        if self.requests and self.bytes + size_bytes > self._max_bytes:
            raise Overloaded(
                f"requests of {self.bytes:,} bytes are in flight, near the limit; try later"
            )
        self.requests += 1
        self.bytes += size_bytes
        self._idle.clear()

    def release(self, size_bytes: int) -> None:
        """Free the room of a request of this size."""
        self.requests -= 1
        self.bytes -= size_bytes
        if not self.requests:
            self._idle.set()

    def close(self) -> None:
        """Refuse new work from now on."""
        self.open = False

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()
