"""What requests, jobs and queries are counted in.

Plain numbers, which only the event loop changes: counting a request takes a few additions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.domain import MAX_VARIANTS
from synergai.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    NotSupported,
    Overloaded,
    PermissionDenied,
    SynergaiError,
    WrongState,
)
from synergai.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.fleet.worker import CompletedQueries


class Buckets:
    """Upper bounds of a histogram's buckets, in seconds, and their label values with infinity."""

    def __init__(self, *bounds: float) -> None:
        self.bounds = bounds
        self.labels = [*map(str, bounds), "+Inf"]


_OK: Final = "ok"
"""Completed within its deadline, or without one."""
_LATE: Final = "late"
"""Completed after its deadline."""
_COUNTED: Final = (_OK, _LATE, "expired", "rejected", "failed")
"""Outcomes of requests that count for the effective accuracy: the client causes the others."""
_OTHERS: Final = "other"
REQUEST_BUCKETS: Final = Buckets(
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
JOB_BUCKETS: Final = Buckets(
    *(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0),
)
MAX_TENANTS: Final = 100
"""Number of tenants with series of their own: clients choose the names, and any number of them."""
DEFAULT: Final = "default"
"""Label of requests and jobs that name no tenant."""
OTHER: Final = "other"
"""Label of all tenants beyond `MAX_TENANTS`."""


# --- histograms and statistics ------------------------------------------------------------------


class Exemplar(NamedTuple):
    """An observation of a bucket whose request was traced."""

    seconds: float
    trace_id: str
    unix: float


class HistogramSnapshot(NamedTuple):
    """Snapshot of a histogram: observations per bucket, their sum, and exemplars by bucket."""

    buckets: Buckets
    counts: list[int]
    total: float
    exemplars: Mapping[int, Exemplar]


class Histogram:
    """Distribution of durations in seconds."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._bounds = buckets.bounds
        self._counts = [0] * len(buckets.labels)
        self._total = 0.0
        self._exemplars: dict[int, Exemplar] = {}

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._total += seconds

    def show(self, seconds: float, trace_id: str, unix: float) -> None:
        """Make a duration that was observed the exemplar of its bucket."""
        bucket = bisect_left(self._bounds, seconds)
        self._exemplars[bucket] = Exemplar(seconds, trace_id, unix)

    def read(self) -> HistogramSnapshot:
        return HistogramSnapshot(
            self._buckets, self._counts.copy(), self._total, self._exemplars.copy()
        )


@dataclass(slots=True)
class Duration:
    """Number of events and their total duration."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


@dataclass(slots=True)
class EngineStatistics:
    """Statistics of one engine.

    Attributes:
        transfer: their time between dispatch and result, less compute time.
        compute: queries of requests and jobs in the engine; each query of a batch counts with the
            time of the whole batch.
        batches: the queries among them that ran in batches, by batch size.
        last_query_at: completion time of the last query in monotonic seconds; None before it.
    """

    success: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    transfer: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    rejected: Duration = field(default_factory=Duration)
    expired: Duration = field(default_factory=Duration)
    cancelled: Duration = field(default_factory=Duration)
    compute: Duration = field(default_factory=Duration)
    batches: dict[int, Duration] = field(default_factory=dict)
    last_query_at: float | None = None

    def record_compute(self, queries: int, seconds: float, now: float, batch: int = 1) -> None:
        """Record queries that a worker computed, in batches of `batch`."""
        self.compute.count += queries
        self.compute.seconds += seconds
        self.last_query_at = now
        if batch > 1:
            batched = self.batches.setdefault(batch, Duration())
            batched.count += queries
            batched.seconds += seconds

    def executions(self) -> dict[int, Duration]:
        """Return the engine's executions by batch size."""
        single = Duration(self.compute.count, self.compute.seconds)
        by_size = {1: single}
        for size, queries in sorted(self.batches.items()):
            single.count -= queries.count
            single.seconds = max(0.0, single.seconds - queries.seconds)
            # Single queries of a batch may have been cancelled and never reported.
            by_size[size] = Duration(math.ceil(queries.count / size), queries.seconds / size)
        return {size: duration for size, duration in by_size.items() if duration.count}

    def record_success(self, queue_s: float, transfer_s: float, compute_s: float) -> None:
        """Record a successful request and the consecutive parts of its time."""
        # On the path of every request: calls of `add` would cost more than the sums.
        success, queue, transfer = self.success, self.queue, self.transfer
        success.count += 1
        success.seconds += queue_s + transfer_s + compute_s
        queue.count += 1
        queue.seconds += queue_s
        transfer.count += 1
        transfer.seconds += transfer_s

    def record_failure(self, error: SynergaiError, seconds: float = 0.0) -> None:
        """Record a request that failed `seconds` after its arrival."""
        match error:
            case Cancelled():
                self.cancelled.add(seconds)
            case DeadlineExceeded():
                self.expired.add(seconds)
            case Overloaded():
                self.rejected.add(seconds)
            case _:
                self.fail.add(seconds)


# --- outcomes -----------------------------------------------------------------------------------


def request_outcome(error: SynergaiError | None, *, late: bool = False) -> str:
    match error:
        case None:
            return _LATE if late else _OK
        case DeadlineExceeded():
            return "expired"
        case Overloaded():
            return "rejected"
        case Cancelled():
            return "cancelled"
        case InvalidInput() | NotFound() | NotSupported() | PermissionDenied() | WrongState():
            return "invalid"
        case _:
            return "failed"


def job_outcome(state: JobState, *, late: bool = False) -> str:
    if state is JobState.SUCCEEDED:
        return _LATE if late else _OK
    return state.name.lower()


# --- engines ------------------------------------------------------------------------------------


class WorkMetrics:
    """Metrics of an engine's requests, or of its jobs."""

    def __init__(self, buckets: Buckets) -> None:
        self.outcomes = Counter[str]()
        self.violations = 0
        self.queue = Histogram(buckets)
        self.run = Histogram(buckets)
        self.estimated_run = Histogram(buckets)
        self.excess = Histogram(buckets)

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    def observe_run(self, estimated_s: float | None, actual_s: float) -> None:
        """Record the time from dispatch to completion and its estimate, if there was one."""
        self.run.observe(actual_s)
        if estimated_s:
            self.estimated_run.observe(estimated_s)

    def count_violation(self, excess_s: float) -> None:
        """Count a missed deadline and record by how much it was missed."""
        self.violations += 1
        self.excess.observe(excess_s)


class VariantMetrics:
    """Metrics of the queries of an engine, or of one of its variants."""

    def __init__(self) -> None:
        self.queries = 0
        self.statistics = EngineStatistics()

    def record(self, completed: CompletedQueries) -> None:
        self.queries += completed.queries
        self.statistics.record_compute(
            completed.queries, completed.compute_s, completed.at, completed.batch
        )


class EngineMetrics(VariantMetrics):
    """Metrics of one engine.

    Attributes:
        labelled: queries of ended jobs with a known label.
        accuracy: sum of the accuracies of the variants that answered requests in time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests = WorkMetrics(REQUEST_BUCKETS)
        self.jobs = WorkMetrics(JOB_BUCKETS)
        self.labelled = self.correct = 0
        self.variants: dict[str, VariantMetrics] = {}
        self.accuracy = 0.0
        self.floor_violations = 0

    def record(self, completed: CompletedQueries) -> None:
        super().record(completed)
        if completed.variant:
            self.variant(completed.variant).record(completed)

    def variant(self, name: str) -> VariantMetrics:
        """Return the metrics of a variant; beyond `MAX_VARIANTS`, all others share one."""
        metrics = self.variants.get(name)
        if metrics is None:
            if len(self.variants) >= MAX_VARIANTS:
                name = _OTHERS
            metrics = self.variants.setdefault(name, VariantMetrics())
        return metrics

    def count_answer(self, accuracy: float, floor: float, *, late: bool) -> None:
        """Count the answer of a variant to a request."""
        if not late:
            self.accuracy += accuracy
        if accuracy < floor:
            self.floor_violations += 1

    @property
    def effective_accuracy(self) -> float:
        """Mean accuracy of the answers to requests; those that were late or missing count as 0."""
        outcomes = self.requests.outcomes
        counted = sum(outcomes[outcome] for outcome in _COUNTED)
        return self.accuracy / counted if counted else 0.0


# --- tenants ------------------------------------------------------------------------------------


class TenantLabels:
    """Labels of a bounded number of tenants, the first ones seen."""

    def __init__(self, limit: int = MAX_TENANTS) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def of(self, tenant: str) -> str:
        """Return the label of a tenant; an empty tenant is the default one."""
        label = tenant or DEFAULT
        if label not in self._known:
            if label == OTHER or len(self._known) >= self._limit:
                return OTHER
            self._known.add(label)
        return label


class TenantState:
    """Counts of one tenant, by outcome."""

    def __init__(self) -> None:
        self.requests = Counter[str]()
        self.jobs = Counter[str]()


class TenantCounts:
    """Requests and jobs per tenant, by its label."""

    def __init__(self, limit: int = MAX_TENANTS) -> None:
        self._labels = TenantLabels(limit)
        self.by_label: dict[str, TenantState] = {}

    def count_request(self, tenant: str, outcome: str) -> None:
        self._of(tenant).requests[outcome] += 1

    def count_job(self, tenant: str, outcome: str) -> None:
        self._of(tenant).jobs[outcome] += 1

    def _of(self, tenant: str) -> TenantState:
        state = self.by_label.get(tenant or DEFAULT)
        if state is None:
            state = self.by_label.setdefault(self._labels.of(tenant), TenantState())
        return state
