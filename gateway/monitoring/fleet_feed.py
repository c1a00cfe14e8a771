"""Feed of the fleet page: the state once, then the changes, encoded once for all viewers.

Nothing is encoded while nobody looks. Viewers share the last changes; one that is too slow for them
gets the state again. The state is encoded in parts, each when the viewer has read those before, so
that it neither holds up the event loop nor stays in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from synergai.errors import Overloaded
from synergai.fleet_page.page_state import INTERVAL_S
from synergai.fleet_page.records import Batch, encode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from gateway.fleet.worker import ConnectedWorker
    from synergai.fleet_page.page_state import PageState
    from synergai.fleet_page.records import PageRecord

MAX_VIEWERS: Final = 64
_KEPT: Final = 80
"""Messages with changes that slow viewers can still get."""
_PART: Final = 100
"""Records in a message."""
_STAGGER_S: Final = 0.002
"""Time between two viewers that get the same changes, so that requests need not wait for all."""


class FleetFeed:
    """The feed, as messages in the format of server-sent events."""

    def __init__(
        self,
        page: PageState,
        workers: Callable[[], Iterable[ConnectedWorker]],
        now: Callable[[], float],
    ) -> None:
        self._page = page
        self._workers = workers
        self._now = now
        self._viewers = 0
        self._messages: deque[bytes] = deque(maxlen=_KEPT)
        self._next = 0  # number of the message that comes next
        self._state: list[PageRecord] = []
        self._state_at = -1  # number of the first message that is not in the state
        self._timer: asyncio.TimerHandle | None = None
        self._published = asyncio.Event()

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Yield messages to one viewer."""
        with self._counted() as place:
            position = -1
            while True:
                if position < self._next - len(self._messages):
                    position, state = self._current_state()
                    event = b"state"
                    for first in range(0, len(state) or 1, _PART):
                        yield self._message(event, state[first : first + _PART])
                        event = b"changes"
                        await asyncio.sleep(0)
                elif position < self._next:
                    message = self._messages[position - self._next]
                    position += 1
                    yield message
                else:
                    await self._published.wait()
                    await asyncio.sleep(place * _STAGGER_S)

    @contextmanager
    def _counted(self) -> Iterator[int]:
        """Count a viewer while the context is open; return how many there were before."""
        place = self._viewers
        if place >= MAX_VIEWERS:
            raise Overloaded(f"{MAX_VIEWERS} viewers have the fleet page open, the limit")
        self._viewers += 1
        if not place:
            self._page.watched = True
            self._publish()
        try:
            yield place
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._stop()

    def _publish(self) -> None:
        """Add what changed, and wake the viewers."""
        for worker in self._workers():
            self._page.power(worker.id, worker.power.mode, worker.power.watts)
        changed = self._page.take()
        for first in range(0, len(changed) or 1, _PART):
            self._messages.append(self._message(b"changes", changed[first : first + _PART]))
            self._next += 1
        if self._state_at < self._next - len(self._messages):
            self._state = []
        self._published.set()
        self._published = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(INTERVAL_S, self._publish)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._page.watched = False
        self._page.take()
        self._messages.clear()
        self._state = []

    def _current_state(self) -> tuple[int, list[PageRecord]]:
        """Return the number of the message that follows the state, and the state."""
        if not self._state:
            # What changes until that message is in both, which does no harm.
            self._state, self._state_at = self._page.state(), self._next
        return self._state_at, self._state

    def _message(self, event: bytes, records: list[PageRecord]) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (event, encode(Batch(self._now(), records)))
