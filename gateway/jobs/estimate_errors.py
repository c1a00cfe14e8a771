"""How long jobs take, compared with their estimates."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final, NamedTuple

WINDOW: Final = 200
"""Completed jobs that are remembered."""
SIMILAR: Final = 2.0
"""Jobs are similar if their estimates differ by at most this factor."""
LEAST: Final = 19
"""Fewest similar jobs whose shortest and longest ratio hold 90 % of further ones."""
PRIOR: Final = (0.5, 2.0)
"""Ratios of actual to estimated time, assumed until `LEAST` similar jobs have completed."""
PRIOR_FIXED_S: Final = 0.05
"""Seconds to dispatch a job and record its result that `PRIOR` adds at most."""
SHORT_S: Final = 0.1
"""Jobs that are expected to take less show what dispatching and recording take."""
LEAST_SHORT: Final = 5
"""Fewest short jobs whose median is used."""


class Interval(NamedTuple):
    """Seconds from a job's first dispatch to completion, at least and at most."""

    low_s: float
    high_s: float


class EstimateErrors:
    """Learns how long jobs take, compared with their estimates.

    Jobs that made way for others are part of it. The quantiles are order statistics: they hold 90 %
    of further jobs under any distribution, as long as these resemble the last ones. Only jobs
    of similar length are compared, since the times of short ones vary by larger factors.
    """

    def __init__(self) -> None:
        self._completed = deque[tuple[float, float]](maxlen=WINDOW)
        self._short = deque[float](maxlen=WINDOW)

    @property
    def fixed_s(self) -> float:
        """Median time that short jobs take in addition to that of their queries."""
        if len(self._short) < LEAST_SHORT:
            return 0.0
        return max(0.0, statistics.median(self._short))

    def add(
        self, estimated_s: float | None, actual_s: float | None, queries_s: float | None = None
    ) -> None:
        """Learn from an ended job, unless it had no estimate or was not completed."""
        if not estimated_s or actual_s is None:
            return
        self._completed.append((estimated_s, actual_s))
        if queries_s is not None and queries_s < SHORT_S:
            self._short.append(actual_s - queries_s)

    def around(self, estimated_s: float) -> Interval:
        """Return the interval of a job with this estimate, which may lie outside of it."""
        ratios = [
            actual_s / other_s
            for other_s, actual_s in self._completed
            if estimated_s <= SIMILAR * other_s and other_s <= SIMILAR * estimated_s
        ]
        if len(ratios) >= LEAST:
            low, *_, high = statistics.quantiles(ratios, n=20)
            return Interval(estimated_s * low, estimated_s * high)
        low, high = PRIOR
        return Interval(
            estimated_s * min((low, *ratios)),
            max(estimated_s * high + PRIOR_FIXED_S, estimated_s * max(ratios, default=0.0)),
        )
