"""Bounded queue of the messages waiting to be written to one stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from synergai.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class SendQueue(Generic[T]):
    """Bounded queue between the producers of a stream and the handler that writes it.

    The handler receives everything that was put during one turn of the event loop, or while the
    peer was slow, as one batch. With more items than the limit, the peer is stuck: the queue is
    closed with `Overloaded`, and `on_error` called for a handler that waits for its peer.

    Attributes:
        is_awaited: the handler waits for the first item of a batch. Who sends it instead of putting
            it spares the handler a turn of the event loop.
        enough: whether a number of items suffices for a handler that collects them; else None.
    """

    def __init__(
        self,
        limit: int,
        *,
        on_error: Callable[[], object] | None = None,
    ) -> None:
        self._limit = limit
        self._items: list[T] = []
        # To be called once what is in the queue is written, and once what the handler has is.
        self._on_written: list[Callable[[], object]] = []
        self._on_batch_written: list[Callable[[], object]] = []
        self._waiter: asyncio.Future[None] | None = None
        self.enough: Callable[[int], bool] | None = None
        self._error: BaseException | None = None
        self.closed = self.is_awaited = False
        self._on_error = on_error

    @property
    def is_half_full(self) -> bool:
        """Whether its room is to be left to more important items."""
        return 2 * len(self._items) >= self._limit

    def put(self, item: T, on_written: Callable[[], object] | None = None) -> None:
        """Enqueue `item`; drop it if the queue is closed.

        `on_written` is called once the handler has written it, or it is dropped.
        """
        if on_written is not None:
            self._on_written.append(on_written)
        if self.closed:
            self._drop_all()
            return
        if len(self._items) >= self._limit:
            self.close(Overloaded(f"{self._limit} messages are queued for a peer that reads none"))
            return
        self._items.append(item)
        if self.enough is None or self.enough(len(self._items)):
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """Close the queue: after the queued items, or at once if there is an `error`."""
        if self.closed:
            return
        self.closed = True
        self._error = error
        self._drop_all()
        if error is not None:
            self._items.clear()
            if self._on_error is not None:
                self._on_error()
        self._wake()

    def close_with(self, reader: asyncio.Future[None]) -> None:
        """Close the queue with the outcome of `reader`; a done callback for futures and tasks."""
        self.close(None if reader.cancelled() else reader.exception())

    async def get_batch(self) -> list[T]:
        """Wait for items and return all of them, in order; an empty list once closed.

        The handler has written those that it got before.
        """
        if self._on_batch_written:
            self._batch_written()
        while not self._items:
            if self._error is not None:
                raise self._error
            if self.closed:
                return []
            self.is_awaited = True
            await self._woken()
        return self.get_batch_nowait()

    def get_batch_nowait(self) -> list[T]:
        """Return all queued items, in order."""
        items, self._items = self._items, []
        if self._on_written:
            self._on_batch_written += self._on_written
            self._on_written.clear()
        return items

    async def collect_until_idle(self, turns: int, timeout_s: float) -> list[T]:
        """Collect items until several turns of the loop bring no more, and return them in order."""
        loop = asyncio.get_running_loop()
        end, idle = loop.time() + timeout_s, loop.create_future()
        idle_turns = known = 0

        def count_turn() -> None:  # a callback, as resuming a coroutine in each turn costs more
            nonlocal idle_turns, known
            size = len(self._items)
            idle_turns = idle_turns + 1 if size == known else 0
            known = size
            if idle.done():
                return
            if idle_turns < turns and loop.time() < end:
                loop.call_soon(count_turn)
            else:
                idle.set_result(None)

        loop.call_soon(count_turn)
        await idle
        return self.get_batch_nowait()

    async def collect_until(self, enough: Callable[[int], bool], timeout_s: float) -> list[T]:
        """Collect further items until there are `enough`, and return them in order."""
        if not (self.closed or enough(len(self._items))):
            # Checked where items are put: waking the handler for each of them would cost more.
            self.enough = enough
            timer = asyncio.get_running_loop().call_later(timeout_s, self._wake)
            try:
                await self._woken()
            finally:
                timer.cancel()
                self.enough = None
        return self.get_batch_nowait()

    def recheck(self) -> None:
        """Have `collect_until` evaluate its condition again."""
        if self.enough is not None and self.enough(len(self._items)):
            self._wake()

    def _batch_written(self) -> None:
        written, self._on_batch_written = self._on_batch_written, []
        for call in written:
            call()

    def _drop_all(self) -> None:
        self._on_batch_written += self._on_written
        self._on_written.clear()
        self._batch_written()

    def _woken(self) -> asyncio.Future[None]:
        """Return a future that is done with the next call of `_wake`."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        return waiter

    def _wake(self) -> None:
        self.is_awaited = False
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():  # done if the handler was cancelled
            waiter.set_result(None)
