"""Jobs: which of their queries are left, and their assignments in flight."""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct, field

from synergai.core.scheduling.state.estimate import LONG_S, Estimate, Limit, RangeTransfers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.explanations import Run
    from synergai.core.scheduling.events import Assignment
    from synergai.domain import AssignmentId, Job, Session, WorkerId

Level: TypeAlias = tuple[int, bool]
"""Sorts before the rank: the negated priority, then whether the tenant is over its share."""


class HasLevel(Protocol):
    """Lane of queued jobs with the same priority and tenant."""

    level: Level


class Ranges:
    """Set of `total` integers, kept as sorted disjoint ranges; at first, ``[0, stop)``."""

    __slots__ = ("_ranges", "total")

    def __init__(self, stop: int = 0) -> None:
        self._ranges: list[tuple[int, int]] = [(0, stop)] if stop > 0 else []
        self.total = stop

    @classmethod
    def complement(cls, done: Sequence[tuple[int, int]], stop: int) -> Ranges:
        """Return ``[0, stop)`` without the ranges in `done`."""
        left = cls()
        position = 0
        for first, last in sorted(done):
            if position < min(first, stop):
                left.add(position, min(first, stop))
            position = max(position, last)
        if position < stop:
            left.add(position, stop)
        return left

    def add(self, start: int, stop: int) -> None:
        """Add ``[start, stop)``, merging with its neighbours."""
        if start >= stop:
            raise ValueError(f"[{start}, {stop}) is empty")
        ranges = self._ranges
        at = bisect_left(ranges, (start, stop))
        overlaps_left = at > 0 and ranges[at - 1][1] > start
        overlaps_right = at < len(ranges) and ranges[at][0] < stop
        if overlaps_left or overlaps_right:
            raise ValueError(f"[{start}, {stop}) overlaps the set")
        self.total += stop - start
        if at < len(ranges) and ranges[at][0] == stop:
            stop = ranges.pop(at)[1]
        if at > 0 and ranges[at - 1][1] == start:
            at -= 1
            start = ranges.pop(at)[0]
        ranges.insert(at, (start, stop))

    def available(self, limit: int) -> int:
        """Return how many of the queries are below `limit`."""
        if not self._ranges or self._ranges[-1][1] <= limit:
            return self.total
        return sum(min(stop, limit) - start for start, stop in self._ranges if start < limit)

    def take(self, count: int, limit: int) -> tuple[int, int] | None:
        """Remove and return the lowest range: at most `count` queries, all below `limit`."""
        if not self._ranges:
            return None
        start, stop = self._ranges[0]
        end = min(stop, start + count, limit)
        if end <= start:
            return None
        if end == stop:
            self._ranges.pop(0)
        else:
            self._ranges[0] = (end, stop)
        self.total -= end - start
        return start, end


class LeasePhase(enum.Enum):
    """Progress of a lease on its worker.

    BEHIND ──▶ SETUP ──▶ RUNNING: it waits behind other leases, becomes their head, and
    reports that its first query runs. Single queries do not report that and stay in SETUP. The
    report can overtake the end of the lease ahead, so BEHIND ──▶ RUNNING is possible. A stop can
    be commanded, and the lease be released, in every phase.
    """

    BEHIND = enum.auto()
    SETUP = enum.auto()
    RUNNING = enum.auto()


class Group(Struct, eq=False):
    """Consecutive leases of a worker, from which its engine host forms batches.

    Attributes:
        most: the largest batch; 1 for a single lease without batches.
    """

    session: Session
    most: int
    leases: int = 1


class Lease(Struct, eq=False):
    """An assignment in flight, from dispatch to release; see `LeasePhase` for its life cycle.

    Attributes:
        estimate: None for a probe.
        expected_s: expected duration without the work ahead of it; infinite if unknown.
        prior_pace: the worker's pace before this lease's first report.
        done: number of recorded queries.
        head_at: when it became the worker's head; None while it waits behind others.
        first_query_at: when its setup ended, if reported.
        reported_at: when it last reported progress or its start.
        compute_s: reported time inside the engine so far.
        yielding: it was stopped for a request.
        aborted_at: when its running query was told to abort.
        batch_size: number of queries computed together with its single query, itself included.
        awaited_since: when a request first waited for the loaded session that it measures.
        is_long_probe: it measures a query that has run for longer than `MEASURED_S`.
        group: None if it runs concurrently.
        switches_mode: its worker switches the power mode for it.
        transfers: what tensors added to its queries; None if it has one query, or no tensors.
        believed_query_s: expected seconds per query, at the start or when it was last found slow.
        brings_inputs: inputs of a job travel with it.
        signs: signs of progress that it has given other than completed queries.
        is_short_request: it is a request whose query is not long.
    """

    assignment: Assignment
    job: JobRecord
    estimate: Estimate | None
    expected_s: float
    assigned_at: float
    session: Session
    prior_pace: float | None = None
    done: int = 0
    head_at: float | None = None
    first_query_at: float | None = None
    reported_at: float | None = None
    compute_s: float = 0.0
    setup_s: float = 0.0
    stopping: bool = False
    yielding: bool = False
    aborted_at: float | None = None
    batch_size: int = 1
    awaited_since: float | None = None
    is_long_probe: bool = False
    group: Group | None = None
    switches_mode: bool = False
    transfers: RangeTransfers | None = None
    believed_query_s: float = 0.0
    brings_inputs: bool = False
    is_short_request: bool = False
    signs: int = 0

    def __post_init__(self) -> None:
        job, query_s = self.job, self.assignment.query_s
        self.believed_query_s = query_s
        self.brings_inputs = job.job.with_tensors and not job.is_request
        self.is_short_request = job.is_request and query_s < LONG_S

    @property
    def remaining(self) -> int:
        """Queries not recorded yet."""
        return self.assignment.count - self.done

    @property
    def phase(self) -> LeasePhase:
        """Its progress on the worker."""
        if self.first_query_at is not None:
            return LeasePhase.RUNNING
        return LeasePhase.SETUP if self.is_head else LeasePhase.BEHIND

    @property
    def is_slow(self) -> bool:
        """Whether its queries turned out to be much slower than was expected of them."""
        return self.believed_query_s > self.assignment.query_s

    @property
    def is_head(self) -> bool:
        """Whether it waits for no other lease of its worker."""
        return self.head_at is not None

    @property
    def rows(self) -> int:
        """Number of its queries that are computed together."""
        times = self.assignment.batch_times
        return 1 if times is None else min(self.assignment.count, times.max_rows)

    @property
    def step_s(self) -> float:
        """Expected time of a query, or a batch: it can be stopped after each."""
        return self.rows * self.assignment.query_s

    @property
    def is_long_request(self) -> bool:
        """Whether it is a request with a long query."""
        return self.job.is_request and self.step_s >= LONG_S

    def query_left_s(self, now: float) -> float:
        """Return how long the step that it runs is expected to take; all of a short one."""
        query_s = self.step_s
        if query_s < LONG_S:
            return query_s
        return query_s - self.query_spent_s(now)

    def runs_long_query(self) -> bool:
        """Return whether it runs a long query, which ends before a stop unless it is aborted."""
        loads = self.phase is LeasePhase.SETUP and self.assignment.setup_s > 0.0
        return self.step_s >= LONG_S and self.aborted_at is None and not loads

    def query_spent_s(self, now: float) -> float:
        """Return for how long it has run its current query, as far as is known."""
        began = self.reported_at
        if began is None:
            began = now if self.head_at is None else self.head_at + self.assignment.setup_s
        spent_s, query_s = max(0.0, now - began), self.step_s
        return min(spent_s, query_s) if self.remaining <= self.rows else spent_s % query_s

    def become_head(self, now: float) -> None:
        """Enter SETUP: no other lease of the worker is ahead."""
        self.head_at = now

    def start(self, setup_s: float, now: float) -> None:
        """Enter RUNNING: the first query began after `setup_s` seconds of setup."""
        self.first_query_at = self.reported_at = now
        self.setup_s = setup_s

    def stop(self) -> None:
        """Expect no more work from it until its worker reports the end."""
        self.stopping = True
        self.expected_s = 0.0


class JobRecord(Struct, eq=False):
    """A job from its arrival until it is finished, failed, rejected, expired or cancelled.

    Each of its queries is recorded, leased or pending; while some pending ones are ready and it
    does not pause before a retry, it is queued. Once removed, it is never queued again, and its
    leases in flight are stopping.

    Attributes:
        pending: queries that are neither recorded nor leased.
        ready: queries below this number can run.
        faults: number of failed assignments without progress in between.
        done_at_fault: number of recorded queries at the last fault.
        fault_covers: last of its assignments that were in flight at that fault.
        held_until: end of its pause before the next retry; None if it does not pause.
        latest_start: when the fastest worker must start the pending queries to meet the deadline.
        lane: where it is queued; None while it is not queued.
        paces: observed over profiled seconds of this job, by worker.
        planned_at: when the last plan that included it completes it; None if there was none.
        runs: its ended assignments, the first and the newest ones; see `rules.history`.
        is_request: it is a single query that a client waits for.
        shares_batches: it is a single query that is computed in a batch with other jobs' queries.
        is_stage: its queries get ready one after the other.
        starved_s: time in which it had nothing to run, as none of its pending queries was ready.
        starved_since: since when that is so again.
        stopped_on: the workers on which it was stopped to measure another engine.
    """

    job: Job
    sequence: int
    pending: Ranges
    ready: int
    done: int = 0
    faults: int = 0
    done_at_fault: int = -1
    fault_covers: int = -1
    held_until: float | None = None
    latest_start: float = math.inf
    rank: float = 0.0
    queued_rank: float = 0.0
    lane: HasLevel | None = None
    leases: dict[AssignmentId, Lease] = field(default_factory=dict)
    paces: dict[WorkerId, float] = field(default_factory=dict)
    planned_at: float | None = None
    removed: bool = False
    runs: list[Run] | None = None
    is_request: bool = False
    shares_batches: bool = False
    is_stage: bool = False
    limit: Limit | None = None
    starved_s: float = 0.0
    starved_since: float | None = None
    stopped_on: frozenset[WorkerId] = frozenset()

    def __post_init__(self) -> None:
        job = self.job
        single = job.queries == 1
        self.is_request = single and job.perishable
        self.shares_batches = single and job.with_tensors
        self.is_stage = self.ready < job.queries
        if job.variant or job.min_accuracy:
            self.limit = Limit(job.variant, job.min_accuracy)

    @property
    def remaining(self) -> int:
        """Queries not recorded yet."""
        return self.job.queries - self.done

    @property
    def assignable(self) -> int:
        """Queries that can be assigned now."""
        return 0 if self.held_until is not None else self.pending.available(self.ready)

    def observe_starving(self, now: float) -> None:
        """Note from when and until when it has nothing to run."""
        starves = not self.leases and not self.pending.available(self.ready)
        if self.starved_since is None:
            self.starved_since = now if starves else None
        elif not starves:
            self.starved_s += now - self.starved_since
            self.starved_since = None

    @property
    def queued(self) -> bool:
        """Whether it is in the job queue."""
        return self.lane is not None

    @property
    def level(self) -> Level | None:
        """Its level in the job queue; None while it is not queued."""
        return None if self.lane is None else self.lane.level

    @property
    def over_share(self) -> bool:
        """Whether it is queued behind others of its priority, its tenant being over its share."""
        return self.lane is not None and self.lane.level[1]


class Stretch(Struct, eq=False):
    """Work of a worker: a job, or requests of an engine in a row."""

    job: Job
    is_request: bool
    queries: int
    since: float
    until: float

    def precedes(self, request: Job) -> bool:
        """Return whether it is of requests to the same engine by the same tenant."""
        job = self.job
        return self.is_request and job.engine == request.engine and job.tenant == request.tenant
