"""Limit on the progress updates of all watched jobs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_INTERVAL_S: Final = 0.1
"""Minimum time between two updates to one watcher.

Each worker reports twenty times a second. With many workers on a job, an update for each report
would take more of the gateway's time than the reports.
"""
MAX_PER_S: Final = 500.0
"""Updates per second to all watchers together.

gRPC reads no requests while earlier messages wait to be sent, so more updates than the gateway can
send would keep requests out for as long as they go on.
"""

MAX_EXECUTIONS_PER_S: Final = 10_000.0
"""Executions per second in these updates, if all have as many.

A job that runs beside requests for hours has thousands of executions. A status with 15,000 takes
65 ms, in which the gateway does nothing else.
"""


class ProgressRate:
    """Spacing of the updates to a watcher, which grows with their size and number of watchers."""

    def __init__(
        self, min_interval_s: float = MIN_INTERVAL_S, max_per_s: float = MAX_PER_S
    ) -> None:
        self._min_interval_s = min_interval_s
        self._max_per_s = max_per_s
        self._watchers = 0

    def interval_s(self, executions: int = 0) -> float:
        """Return the time from an update with so many executions to the next one."""
        one_s = max(1 / self._max_per_s, executions / MAX_EXECUTIONS_PER_S)
        return max(self._min_interval_s, self._watchers * one_s)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count a watcher while the context is open."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1
