"""Load shedding: reject a request at once if it would miss its deadline in the queue.

Under overload, a queue in deadline order grows until the requests at its head have just enough
time left, so that every response is slightly late. Rejecting the requests that would be late keeps
the others on time, and their clients can still try elsewhere.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

from synergai.errors import Overloaded

if TYPE_CHECKING:
    from synergai.domain import Job

DEADLINE_SHARE: Final = 0.8
"""Share of the remaining time that the expected response time may take, as a safety margin."""
SMOOTHING: Final = 32
"""Number of recent dispatches that the mean dispatch interval covers."""
STALE_AFTER_S: Final = 10.0
"""Age at which observations are discarded, since workers join, leave and change."""


class LoadShedder:
    """The queued requests of one engine, ordered by priority and deadline.

    The queue's throughput is observed as the time between successive dispatches while requests
    wait, whatever the number of workers and their other work. Scheduling policies differ in their
    order; this one favours a new request the most, so none that could be in time is rejected. For
    the same reason, times are those of the engine's fastest variant: which one runs is chosen, and
    becomes faster as the queue grows.
    """

    def __init__(self) -> None:
        self._queued: list[tuple[int, float]] = []
        self._mean_interval_s = 0.0
        self._run_s = 0.0
        self._samples = 0
        self._last_sample_at = -math.inf
        self._interval_began_at: float | None = None
        self._fastest_share = 1.0

    def __len__(self) -> int:
        return len(self._queued)

    def check(self, priority: int, left_s: float | None, now: float) -> None:
        """Check that a request queued now would complete in time.

        Args:
            priority: 0 (default) to 9 (most urgent).
            left_s: seconds until its deadline; None if it has none.
            now: current time in monotonic seconds.

        Raises:
            Overloaded: it would miss its deadline.
        """
        if not self._queued or left_s is None:
            return
        ahead = bisect_left(self._queued, (-priority, now + left_s))
        if not ahead:
            return
        expected_s = ahead * self._dispatch_interval_s(now) + self._run_s
        if expected_s > DEADLINE_SHARE * left_s:
            raise Overloaded(
                f"{ahead:,} requests are ahead in the queue: a response would take about "
                f"{expected_s:.2g} s, but the deadline is in {left_s:.2g} s; try later"
            )

    def _dispatch_interval_s(self, now: float) -> float:
        """Return the mean seconds between dispatches; 0 if unknown."""
        if now - self._last_sample_at > max(STALE_AFTER_S, SMOOTHING * self._mean_interval_s):
            self._samples = 0
            self._mean_interval_s = 0.0
        return self._mean_interval_s

    def add(self, job: Job) -> None:
        """Add a queued request."""
        insort(self._queued, (-job.priority, job.deadline))

    def dispatch(self, job: Job, run_s: float, now: float, fastest_share: float = 1.0) -> None:
        """Remove a request that was dispatched to a worker.

        Args:
            job: the request.
            run_s: its estimated seconds to completion.
            now: current time in monotonic seconds.
            fastest_share: share of its time that the engine's fastest variant would take.
        """
        self._run_s = run_s * fastest_share
        if self._interval_began_at is not None:
            self._observe((now - self._interval_began_at) * self._fastest_share, now)
        self._fastest_share = fastest_share
        self.remove(job)
        if self._queued:
            self._interval_began_at = now

    def remove(self, job: Job) -> None:
        """Remove a request from the queue."""
        del self._queued[bisect_left(self._queued, (-job.priority, job.deadline))]
        if not self._queued:
            self._interval_began_at = None

    def _observe(self, interval_s: float, now: float) -> None:
        self._samples = min(self._samples + 1, SMOOTHING)
        self._mean_interval_s += (interval_s - self._mean_interval_s) / self._samples
        self._last_sample_at = now
