"""Expected cost of running an engine on a worker, and the observations that correct it."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from synergai.domain import BatchTimes, Configuration, EngineName, Session
from synergai.jobs import MAX_QUERIES

if TYPE_CHECKING:
    from synergai.profiles.dictionary import ProfileEntry

BRIEF_S: Final = 0.002
"""Queries up to this time are brief: they gain little from several threads, and need not wait."""
LONG_S: Final = 0.2
"""Duration from which on queries count as long: what is left of them matters to requests."""
SHORTEST_S: Final = 1e-9
"""Less is no time that a query took: a rounding error, or the claim of a broken worker."""
_NEAR: Final = 0.003
"""Share of the time of a query by which estimates of variants may be out of date."""
_MEDIAN_OF: Final = 5
"""Observations of a transfer whose median counts."""
_TRANSFER_WEIGHT: Final = 0.08
"""Weight of such a median in the exponential average that follows the first few."""
_PRIOR: Final = 2
"""Weight, in queries of a range, of what was known before its first one."""
_NEARLY_BEST: Final = 0.95
"""Share of the highest rate that the batches of a job have at least; the smallest such are used."""


class Estimate(Struct, frozen=True):
    """Expected cost of an engine on a worker in one configuration.

    Attributes:
        setup_s: seconds still to be paid before the first query.
        per_query_s: seconds per query at the worker's observed pace.
        typical_s: half of the single queries take longer. Other work on the same cores lengthens
            a few of them much, and so the mean, but not this.
        transfer_s: additional seconds of a single query whose tensors travel with it.
        input_s: additional seconds per query of a job whose inputs travel with it, ahead.
        joules: energy per query; infinite if not profiled.
        accuracy: measured or declared share of right answers; 0 if it is not known.
        job_batches: profiled times of the batches that jobs run in, up to their size; None if jobs
            run query by query.
        is_rough: the profile was observed on fewer queries than a probe has.
    """

    configuration: Configuration
    setup_s: float
    per_query_s: float
    typical_s: float
    transfer_s: float
    input_s: float
    joules: float
    entry: ProfileEntry
    planned_qps: float
    session: Session
    accuracy: float = 0.0
    job_batches: BatchTimes | None = None
    is_rough: bool = False

    def with_pace(
        self, pace: float, typical_pace: float, transfer_s: float, input_s: float
    ) -> Estimate:
        """Return the estimate at another worker pace, its median, and transfer times."""
        return Estimate(
            self.configuration,
            self.setup_s,
            pace / self.planned_qps,
            typical_pace / self.planned_qps,
            transfer_s,
            input_s,
            self.joules,
            self.entry,
            self.planned_qps,
            self.session,
            self.accuracy,
            self.job_batches,
            self.is_rough,
        )

    @property
    def batch_times(self) -> BatchTimes | None:
        """Latencies of batches of single queries at the observed pace; None if not profiled."""
        return self._at_pace(self.entry.batch_times)

    @property
    def job_batch_times(self) -> BatchTimes | None:
        """The same of `job_batches`."""
        return self._at_pace(self.job_batches)

    def _at_pace(self, profiled: BatchTimes | None) -> BatchTimes | None:
        if profiled is None:
            return None
        pace = self.per_query_s * self.planned_qps
        return BatchTimes(tuple(pace * seconds for seconds in profiled.by_size))

    def batch_gain(self, queries: int) -> float:
        """Return the time of a query of a job with `queries`, relative to that of a single one."""
        if self.job_batches is None or queries == 1:
            return 1.0
        return self.job_batches.share(queries)

    @property
    def least_s(self) -> float:
        """Seconds per query of the largest jobs."""
        return self.batch_gain(MAX_QUERIES) * self.per_query_s

    def capacity_s(self, *, with_tensors: bool) -> float:
        """Return the worker time that a query takes when many wait."""
        if not with_tensors:
            return self.least_s
        alone_s = self.per_query_s + self.transfer_s
        times = self.entry.batch_times
        if times is None:
            return alone_s
        pace = self.per_query_s * self.planned_qps
        return min(alone_s, pace * times.by_size[-1] / times.max_rows)

    def seconds(self, queries: int, *, with_tensors: bool = False) -> float:
        """Return the time for `queries` queries on an idle worker (thesis, Eq. 6.2)."""
        per_query_s = self.batch_gain(queries) * self.per_query_s
        per_query_s += self.tensor_s(queries) if with_tensors else 0.0
        return self.setup_s + queries * per_query_s

    def tensor_s(self, queries: int) -> float:
        """Return the seconds that tensors add to each of the queries of a job."""
        return self.transfer_s if queries == 1 else self.input_s

    @property
    def alone_s(self) -> float:
        """Time of a request on an idle worker, whose pace an attempt corrects."""
        return min(self.per_query_s + self.transfer_s, 1.0 / self.entry.qps)

    def is_near(self, pace: float, _typical: float, transfer_s: float, input_s: float) -> bool:
        """Return whether it is as good as one at another pace and transfer times."""
        near_s = _NEAR * self.per_query_s
        return (
            abs(pace / self.planned_qps - self.per_query_s) <= near_s
            and abs(transfer_s - self.transfer_s) <= near_s
            and abs(input_s - self.input_s) <= near_s
        )

    def dominates(self, other: Estimate) -> bool:
        """Return whether `other` is not faster for any number of queries."""
        return (
            self.setup_s <= other.setup_s
            and self.per_query_s <= other.per_query_s
            and self.per_query_s + self.transfer_s <= other.per_query_s + other.transfer_s
            and self.per_query_s + self.input_s <= other.per_query_s + other.input_s
        )


def pareto_front(found: list[Estimate]) -> list[Estimate]:
    """Return the estimates that are the fastest for some number of queries; sorts `found`."""
    if len(found) == 1:
        return found
    found.sort(key=lambda e: (e.setup_s, e.per_query_s))
    kept: list[Estimate] = []
    least = [math.inf] * 3
    for e in found:
        seconds = [e.per_query_s + added_s for added_s in (0.0, e.transfer_s, e.input_s)]
        if any(one < best for one, best in zip(seconds, least, strict=True)):
            kept.append(e)
            least = list(map(min, seconds, least))
    return kept


def batches_for_jobs(entry: ProfileEntry) -> BatchTimes | None:
    """Return the times of the batches that jobs run in; None if batches do not pay.

    These are the smallest that are nearly as fast as any. A request waits for the one that runs, so
    none takes as long as a long query.
    """
    times = entry.batch_times
    if times is None:
        return None
    short = takewhile(lambda seconds: seconds < LONG_S, times.by_size)
    rates = [(1 << power) / seconds for power, seconds in enumerate(short)]
    best = max(rates, default=0.0)
    size = next((power for power, rate in enumerate(rates) if rate >= _NEARLY_BEST * best), 0)
    return BatchTimes(times.by_size[: size + 1]) if size else None


class Limit(NamedTuple):
    """The only variant that a job may use, or empty, and the lowest accuracy."""

    variant: str
    min_accuracy: float

    def allows(self, estimate: Estimate) -> bool:
        """Return whether the job may use the variant of an estimate."""
        return self.admits(estimate.configuration.variant, estimate.accuracy)

    def admits(self, variant: str, accuracy: float) -> bool:
        """Return whether the job may use a variant with an accuracy."""
        return self.variant in ("", variant) and accuracy >= self.min_accuracy


class Observation(Struct, frozen=True):
    """Execution times of a lease, derived from one progress report.

    Attributes:
        engine_s: engine time of all its finished queries, each computed alone; 0 if unknown.
        transfer_s: additional time of the queries that are new, as their tensors came with them;
            None if not measured.
        transfers: number of these queries.
    """

    engine_s: float
    transfer_s: float | None = None
    transfers: int = 1


class RangeTransfers:
    """What tensors have added to the queries of one range so far.

    What was known before weighs as much as `_PRIOR` queries. The longest time between two reports
    is left out, since it may have been a stall.
    """

    __slots__ = ("_before_s", "_longest", "_queries", "_seconds")

    def __init__(self, before_s: float) -> None:
        self._before_s = before_s
        self._seconds, self._queries = 0.0, 0
        self._longest = 0.0, 0

    def observe(self, seconds: float, queries: int) -> float:
        """Learn from some more queries, and return what is expected of each further one."""
        self._seconds += seconds
        self._queries += queries
        self._longest = max(self._longest, (seconds, queries))
        longest_s, of_longest = self._longest
        prior = _PRIOR if self._before_s else 0
        counted = prior + self._queries - of_longest
        if not counted:
            return 0.0
        return (prior * self._before_s + self._seconds - longest_s) / counted


class TransferTime:
    """Seconds per query that its tensors add, learned from observations.

    Single queries are observed by the median of the last few, so that a short stall is not taken
    for a slow link. Nothing is expected before the second observation. They say little about the
    inputs of jobs, which travel together, and ahead of their queries.

    Attributes:
        seconds: for a single query.
        of_inputs: for each query of a job.
    """

    __slots__ = ("_last", "of_inputs", "seconds")

    def __init__(self) -> None:
        self.seconds = self.of_inputs = 0.0
        self._last = deque[float]([0.0], _MEDIAN_OF)

    def observe(self, seconds: float) -> None:
        """Learn from a single query."""
        weight = 1.0 if len(self._last) < _MEDIAN_OF else _TRANSFER_WEIGHT
        self._last.append(seconds)
        median_s = sorted(self._last)[(len(self._last) - 1) // 2]  # the lower one of two
        self.seconds += weight * (median_s - self.seconds)


@dataclass(slots=True)
class Fruitless:
    """Assignments of an engine in a row that ended on a worker without a completed query.

    Attributes:
        ends: how many ended unasked; those that were in flight together count once.
        covers: the last assignment that was in flight at the last of them.
        seconds: for how long those ran that the gateway stopped.
        ejections: how often the engine was ejected.
    """

    ends: int = 0
    covers: int = -1
    seconds: float = 0.0
    ejections: int = 0


@dataclass(slots=True, eq=False)
class Observed:
    """What the reports of a worker have shown so far, by engine.

    Attributes:
        typical: the median of single queries' paces, roughly.
        requests: requests behind the pace of an engine that was measured with a single one.
        setup: observed over profiled setup time; also by whether the session was added to a host
            that had others of its engine.
        transfers: times that tensors add to queries.
        arrivals: seconds from an assignment of a job until its first input has arrived.
        switch_s: time of a power mode switch; None if there was none.
        guessed: engines whose pace no query has shown; see `rules.exploration`.
        fruitless: assignments since the last completed query; see `rules.outliers`.
    """

    pace: dict[EngineName, float] = field(default_factory=dict)
    typical: dict[EngineName, float] = field(default_factory=dict)
    requests: Counter[EngineName] = field(default_factory=Counter)
    setup: dict[tuple[EngineName, bool], float] = field(default_factory=dict)
    transfers: dict[EngineName, TransferTime] = field(default_factory=dict)
    arrivals: dict[EngineName, float] = field(default_factory=dict)
    switch_s: float | None = None
    guessed: set[EngineName] = field(default_factory=set)
    fruitless: dict[EngineName, Fruitless] = field(default_factory=dict)

    def times(self, engine: EngineName) -> tuple[float, float, float, float]:
        """Return the pace, its median, and the transfer seconds of single queries and jobs."""
        transfer = self.transfers.get(engine)
        return (
            self.pace.get(engine, 1.0),
            self.typical.get(engine, 1.0),
            0.0 if transfer is None else transfer.seconds,
            0.0 if transfer is None else transfer.of_inputs,
        )

    def void_pace(self, engine: EngineName) -> None:
        """Forget the pace of an engine, as a profile that it relates to is replaced."""
        self.pace.pop(engine, None)
        self.typical.pop(engine, None)
        del self.requests[engine]
        self.guessed.discard(engine)
