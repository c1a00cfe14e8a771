"""Whether a request that comes now would still be answered in time, or had better not wait.

Left to itself, a queue in the order of deadlines does the wrong thing under overload: it grows
until those at its head have just enough time left, so that every answer is late by a hair. A
request that would come too late is therefore refused at once, when its client can still ask
elsewhere, and those that wait have time to spare.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

from synergai.errors import Overloaded

if TYPE_CHECKING:
    from synergai.domain import Job

MARGIN: Final = 0.8
"""Part of the time left that the expected answer may take: expectations are wrong by some."""
MEMORY: Final = 32
"""About so many of the last dispatches say how fast the backlog goes."""
FORGET_S: Final = 10.0
"""What was seen so long ago says nothing any more: workers come, go and change."""


class Backlog:
    """The requests of one engine that wait for a worker, in the order of priority and deadline.

    How fast they go is observed: the time from one dispatch to the next while somebody waits,
    however many workers there are and whatever else they do. Policies differ in their order; the
    one here does a new request the most good, so that none is refused that might have been in time.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, float]] = []
        self._interval_s = 0.0
        self._run_s = 0.0
        self._seen = 0
        self._seen_at = -math.inf
        self._waited_for_since: float | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self, priority: int, left_s: float | None, now: float) -> None:
        """Check that a request would be answered in time if it were to wait now.

        Args:
            priority: 0 to 9 (first).
            left_s: until its deadline; None if it has none.
            now: the present instant.

        Raises:
            Overloaded: it would not.
        """
        if not self._waiting or left_s is None:
            return
        ahead = bisect_left(self._waiting, (-priority, now + left_s))
        if not ahead:
            return
        expected_s = ahead * self._pace_s(now) + self._run_s
        if expected_s > MARGIN * left_s:
            raise Overloaded(
                f"{ahead:,} requests come first: an answer would take about {expected_s:.2g} s, "
                f"but {left_s:.2g} s are left; try later"
            )

    def _pace_s(self, now: float) -> float:
        """Seconds from one dispatch to the next; 0 as long as nothing is known of it."""
        if now - self._seen_at > max(FORGET_S, MEMORY * self._interval_s):
            self._seen = 0
            self._interval_s = 0.0
        return self._interval_s

    def enter(self, job: Job) -> None:
        """Have the request wait."""
        insort(self._waiting, (-job.priority, job.deadline))

    def dispatched(self, job: Job, run_s: float, now: float) -> None:
        """The request waits no more: it was given to a worker.

        Args:
            job: the request.
            run_s: what it is estimated to take from now on.
            now: the present instant.
        """
        self._run_s = run_s
        if self._waited_for_since is not None:
            self._see(now - self._waited_for_since, now)
        self.leave(job)
        if self._waiting:
            self._waited_for_since = now

    def leave(self, job: Job) -> None:
        """The request waits no more, however it came."""
        del self._waiting[bisect_left(self._waiting, (-job.priority, job.deadline))]
        if not self._waiting:
            self._waited_for_since = None

    def _see(self, interval_s: float, now: float) -> None:
        self._seen = min(self._seen + 1, MEMORY)
        self._interval_s += (interval_s - self._interval_s) / self._seen
        self._seen_at = now
