"""Feed of the fleet page: the state once, then the changes, encoded once for all viewers.

Nothing is encoded while nobody looks. Viewers share the last batches; one that is too slow for
them gets the state again, so none of them costs memory of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from synergai.errors import Overloaded
from synergai.fleet_page.records import encode
from synergai.fleet_page.view import INTERVAL_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from gateway.fleet.worker import ConnectedWorker
    from synergai.fleet_page.view import View

MAX_VIEWERS: Final = 64
_KEPT: Final = 40
"""Batches that slow viewers can still get, of `INTERVAL_S` each."""


class FleetFeed:
    """The feed, as messages in the format of server-sent events."""

    def __init__(
        self,
        view: View,
        workers: Callable[[], Iterable[ConnectedWorker]],
        now: Callable[[], float],
    ) -> None:
        self._view = view
        self._workers = workers
        self._now = now
        self._viewers = 0
        self._batches: deque[bytes] = deque(maxlen=_KEPT)
        self._next = 0  # number of the batch that comes next
        self._state = b""
        self._state_at = -_KEPT  # number of the first batch that is not in the state
        self._timer: asyncio.TimerHandle | None = None
        self._published = asyncio.Event()

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Yield messages to one viewer.

        Raises:
            Overloaded: there are too many viewers.
        """
        with self._counted():
            position = -_KEPT
            while True:
                if position < self._next - len(self._batches):
                    position, message = self._current_state()
                    yield message
                elif position < self._next:
                    message = self._batches[position - self._next]
                    position += 1
                    yield message
                else:
                    await self._published.wait()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._viewers >= MAX_VIEWERS:
            raise Overloaded(f"{MAX_VIEWERS} viewers have the fleet page open, the limit")
        self._viewers += 1
        if self._viewers == 1:
            self._view.watched = True
            self._publish()
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._stop()

    def _publish(self) -> None:
        """Add a batch, and wake the viewers."""
        for worker in self._workers():
            self._view.power(worker.id, worker.power.mode, worker.power.watts)
        self._batches.append(_message(b"changes", encode(self._view.take(self._now()))))
        self._next += 1
        self._published.set()
        self._published = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(INTERVAL_S, self._publish)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._view.watched = False
        self._view.take(self._now())
        self._batches.clear()
        self._state, self._state_at = b"", -_KEPT

    def _current_state(self) -> tuple[int, bytes]:
        """Return the state and the number of the next batch; encoded anew only if it is old."""
        if self._state_at < self._next - len(self._batches) or not self._state:
            # What changes until the next batch is in both, which does no harm.
            self._state = _message(b"state", encode(self._view.state(self._now())))
            self._state_at = self._next
        return self._state_at, self._state


def _message(event: bytes, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event, data)
