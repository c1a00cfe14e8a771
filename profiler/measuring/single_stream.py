"""MLPerf's Single Stream scenario: queries one at a time, each timed.

MLPerf LoadGen runs it where it is installed, else the timer in this module, which computes the
same figures in the same way. Neither says anything about the QPS of a dictionary's entry, which is
measured on ranges of queries.
"""

from __future__ import annotations

import random
import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SEED: Final = 2747215439041700203
"""Of the order of samples, so that runs are comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleStreamResult:
    """Result of a Single Stream run.

    Attributes:
        validity: ``VALID`` or ``INVALID``, by LoadGen's rules; empty without LoadGen.
        qps: the inverse of the mean latency (LoadGen's "QPS w/o loadgen overhead").
        invalid_because: the rule that was not met, and what to do; empty if it is valid.
    """

    validity: str
    queries: int
    qps: float
    latency_p50_s: float
    latency_p90_s: float
    latency_p99_s: float
    invalid_because: str = ""


def time_queries(
    issue: Callable[[int], object],
    *,
    samples: int,
    queries: int,
    min_duration_s: float,
    report: Callable[[int], object],
    clock: Callable[[], int] = time.perf_counter_ns,
) -> SingleStreamResult:
    """Issue queries one after another on random samples, and time them.

    Args:
        issue: runs the query on the sample with this index.
        report: called after each query with the number of queries so far, outside its latency.
        clock: monotonic clock in nanoseconds.
    """
    order = random.Random(_SEED)
    latencies = array("q")
    began = clock()
    ended = began
    while len(latencies) < queries or ended - began < min_duration_s * 1e9:
        sample = order.randrange(samples)
        issued = clock()
        issue(sample)
        ended = clock()
        latencies.append(ended - issued)
        report(len(latencies))
    return summarise(latencies)


def summarise(latencies_ns: Sequence[int]) -> SingleStreamResult:
    """Return the figures of queries as LoadGen computes them."""
    in_order = sorted(latencies_ns)
    p50_s, p90_s, p99_s = (in_order[len(in_order) * p // 100] / 1e9 for p in (50, 90, 99))
    return SingleStreamResult(
        validity="",
        queries=len(in_order),
        qps=1e9 * len(in_order) / max(1, sum(in_order)),
        latency_p50_s=p50_s,
        latency_p90_s=p90_s,
        latency_p99_s=p99_s,
    )
