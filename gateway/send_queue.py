"""What waits to be written to one stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from synergai.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Outbox(Generic[T]):
    """A bounded mailbox between those who write to a stream and the handler that owns it.

    Everything put in during one turn of the loop, or while the peer was slow, is taken at once.

    Args:
        limit: how many items may wait; beyond, the peer is taken for one that does not read,
            and the stream ends.

    Attributes:
        closed: nothing more is taken in.
        when_broken: called when the stream ends with an error: a handler that waits for its peer
            would not notice.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: list[T] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self.closed = False
        self.when_broken: Callable[[], object] = _nobody_waits

    def put(self, item: T) -> None:
        """Add `item`, unless the stream has ended."""
        if self.closed:
            return
        if len(self._items) >= self._limit:
            self.close(Overloaded(f"{self._limit} messages wait for a peer that does not read"))
            return
        self._items.append(item)
        self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """End the stream: after what waits, or at once and with `error`."""
        if self.closed:
            return
        self.closed = True
        self._error = error
        if error is not None:
            self._items.clear()
            self.when_broken()
        self._wake()

    def follow(self, reader: asyncio.Future[None]) -> None:
        """End the stream as its reader ended; a callback for the reader's future or task."""
        self.close(None if reader.cancelled() else reader.exception())

    async def take(self) -> list[T]:
        """All that waits, in order, as soon as there is something; nothing once it has ended.

        Raises:
            BaseException: what the stream was closed with.
        """
        while not self._items:
            if self._error is not None:
                raise self._error
            if self.closed:
                return []
            await self._woken()
        return self.take_nowait()

    def take_nowait(self) -> list[T]:
        """All that waits just now, in order."""
        items, self._items = self._items, []
        return items

    async def gather(self, turns: int, longest_s: float) -> list[T]:
        """What comes in from now on, in order, until the loop has nothing more to bring.

        Args:
            turns: so many turns of the loop without a new item are taken for that.
            longest_s: return after this in any case.
        """
        loop = asyncio.get_running_loop()
        enough = loop.time() + longest_s
        quiet = known = 0
        while quiet < turns and loop.time() < enough:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._items) == known else 0
            known = len(self._items)
        return self.take_nowait()

    async def gather_until(self, enough: Callable[[int], bool], longest_s: float) -> list[T]:
        """What comes in from now on, in order, until there is enough.

        Args:
            enough: asked with the number of items whenever one came, or `nudge` was called.
            longest_s: return after this in any case.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + longest_s
        timer = loop.call_later(longest_s, self._wake)
        try:
            while not (self.closed or enough(len(self._items)) or loop.time() >= give_up_at):
                await self._woken()
        finally:
            timer.cancel()
        return self.take_nowait()

    def nudge(self) -> None:
        """Have `gather_until` ask again whether there is enough."""
        self._wake()

    async def _woken(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _nobody_waits() -> None:
    pass
