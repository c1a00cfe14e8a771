"""Mutable records of jobs, workers and leases, owned by the core."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from synergai.domain import Session, WorkerId
from synergai.scheduling.state.estimate import BRIEF_S, LONG_S, Limit, Observed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.domain import AssignmentId, Configuration, EngineName, Job, Variant
    from synergai.explanations.facts import Run
    from synergai.scheduling.events import Assignment, Worker
    from synergai.scheduling.settings import SchedulingSettings
    from synergai.scheduling.state.estimate import Estimate, RangeTransfers
    from synergai.scheduling.state.ranges import Ranges
    from synergai.scheduling.variants.fronts import ConvexFront

Level: TypeAlias = tuple[int, bool]
"""Sorts before the rank: the negated priority, then whether the tenant is over its share."""


class HasLevel(Protocol):
    """Lane of queued jobs with the same priority and tenant."""

    level: Level


MAX_REQUESTS: Final = 4
"""Requests in flight on an interrupted worker, or concurrent ones in one session; others wait in
the queue, in its order."""
BRIEF_SHARE: Final = 0.25
"""A query is brief up to `BRIEF_S`, or this share of the time of the query at a worker's head."""
MAX_BRIEF: Final = 4
"""Sessions per core that run brief queries concurrently with other work."""
MAX_BRIEF_REQUESTS: Final = 32
"""Concurrent brief requests in one session; together they also take no more than `prefetch_s`."""
MOST_AHEAD_S: Final = 0.5
"""Longest time by which work is sent ahead, however long its inputs take to arrive."""
MEASURED_S: Final = 0.5
"""Time that requests leave a worker to a query that is measured; then it is long, and shares."""
DECAY: Final = 0.9
"""Weight of a worker's longest silence so far, with each further sign of progress."""
ABORT_S: Final = 0.05
"""Time after which a worker has aborted the query that it computes."""


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
        company: other engines on its machine, when it was assigned or last made progress.
        had_company: there were any; what it took says nothing about the pace of its worker.
        transfers: what tensors added to its queries; None if it has one query, or no tensors.
        believed_query_s: expected seconds per query, at the start or when it was last found slow.
        brings_inputs: inputs of a job travel with it.
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
    company: tuple[EngineName, ...] = ()
    had_company: bool = False
    transfers: RangeTransfers | None = None
    believed_query_s: float = 0.0
    brings_inputs: bool = False
    is_short_request: bool = False

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
    limit: Limit | None = None

    def __post_init__(self) -> None:
        job = self.job
        single = job.queries == 1
        self.is_request = single and job.perishable
        self.shares_batches = single and job.with_tensors
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


class WorkerRecord(Struct, eq=False):
    """A worker from joining to leaving the fleet.

    It is idle without leases and busy otherwise. A busy worker may be available as well, as work
    is prefetched. A draining worker becomes idle and stays so until it leaves.

    Attributes:
        index: order of joining; breaks ties.
        file_variants: the variant of other workers that its single file of an engine is.
        paused: sessions that failed, and until when they are not used; see `failures`.
        power_mode: the mode after its current assignments; None if unknown.
        observed: what its reports have shown, also before it left and returned.
        leases: its other assignments in execution order, from `head`, which runs now, to `last`.
        concurrent: its assignments that run concurrently, in execution order by session.
        head_ends_at: expected end of the first lease.
        behind_head_s: expected duration of all other leases.
        groups: its `leases`, by what forms batches.
        available_at: from when on it accepts an assignment; -inf: already, inf: only an event
            can make it available.
        requests: how many of its `leases` are requests'.
        yielding: how many of its leases were stopped for a request.
        spreads: margin that is kept for deviations from estimates, by engine with variants.
        heard_at: when it last gave a sign of progress.
        silences_s: longest recent time between two of them, by engine.
        ejected_until: end of its pause as an outlier; None if it is not ejected.
        ejections: how often it was ejected since it last completed a query.
        on_trial: it was ejected, and has not completed a query since.
        mates: the other workers of its machine, by index.
    """

    worker: Worker
    index: int
    engines: set[EngineName]
    sessions: set[Session]
    id: WorkerId = WorkerId("")
    unusable: set[Session] = field(default_factory=set)
    variants: dict[EngineName, tuple[Variant, ...]] = field(default_factory=dict)
    file_variants: dict[EngineName, str] = field(default_factory=dict)
    query_s: dict[EngineName, float] = field(default_factory=dict)
    paused: dict[Session, float] = field(default_factory=dict)
    power_mode: str | None = None
    observed: Observed = field(default_factory=Observed)
    prefetch_s: float = 0.0
    draining: bool = False
    leases: dict[AssignmentId, Lease] = field(default_factory=dict)
    head: Lease | None = None
    last: Lease | None = None
    concurrent: dict[Session, dict[AssignmentId, Lease]] = field(default_factory=dict)
    head_ends_at: float = 0.0
    behind_head_s: float = 0.0
    idle_since: float = 0.0
    groups: list[Group] = field(default_factory=list)
    available_at: float = math.inf
    last_job: JobRecord | None = None
    requests: int = 0
    yielding: int = 0
    estimates: dict[EngineName, tuple[Estimate, ...]] = field(default_factory=dict)
    fronts: dict[EngineName, dict[tuple[Limit | None, bool], ConvexFront]] = field(
        default_factory=dict
    )
    spreads: dict[EngineName, float] = field(default_factory=dict)
    heard_at: float = -math.inf
    silences_s: dict[EngineName, float] = field(default_factory=dict)
    ejected_until: float | None = None
    ejections: int = 0
    on_trial: bool = False
    mates: dict[int, WorkerRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id = self.worker.id

    @property
    def withdrawn(self) -> bool:
        """Whether it gets no new assignments: it drains, or is ejected as an outlier."""
        return self.draining or self.ejected_until is not None

    @property
    def company(self) -> tuple[EngineName, ...]:
        """The engines that run on the other workers of its machine now."""
        if not self.mates:
            return ()
        heads = (mate.head for mate in self.mates.values())
        return tuple(sorted(head.assignment.engine for head in heads if head is not None))

    def configurations(self, engine: EngineName) -> list[Configuration]:
        """Return the configurations that it can run `engine` in."""
        every: Iterable[Configuration] = self.worker.configurations
        if variants := self.variants.get(engine):
            every = [replace(each, variant=one.name) for each in every for one in variants]
        if self.unusable:
            every = [each for each in every if Session(engine, each) not in self.unusable]
        if self.paused:
            used = [each for each in every if Session(engine, each) not in self.paused]
            every = used or every
        return list(every)

    def has_other_variants(self, session: Session, *, paused: bool) -> bool:
        """Return whether it can run another variant of a session, perhaps one that pauses."""
        variant = session.configuration.variant
        without = self.unusable if paused else self.unusable | self.paused.keys()
        return bool(variant) and any(
            Session(session.engine, replace(configuration, variant=other.name)) not in without
            for configuration in self.worker.configurations
            for other in self.variants.get(session.engine, ())
            if other.name != variant
        )

    def all_leases(self) -> list[Lease]:
        """Return all of its assignments."""
        concurrent = [lease for leases in self.concurrent.values() for lease in leases.values()]
        return [*self.leases.values(), *concurrent]

    @property
    def is_idle(self) -> bool:
        """Whether it has no assignments."""
        return not self.leases and not self.concurrent

    @property
    def takes_more(self) -> bool:
        """Whether it is busy, and may get further assignments before it is idle."""
        return bool(self.leases) and not self.withdrawn and not self.on_trial

    @property
    def is_interruptible(self) -> bool:
        """Whether it runs a job, not a probe, and takes another request between two queries.

        It is one that `takes_more`.
        """
        return (
            self.requests < len(self.leases)
            and self.requests < MAX_REQUESTS
            and all(lease.estimate is not None for lease in self.leases.values())
        )

    def may_run_concurrently(self, estimate: Estimate) -> bool:
        """Return whether requests of this cost may run concurrently with its `leases` at all.

        The session is loaded. Nothing is computed while the head's is being loaded, or the cores
        suffice for the threads of both, or the request is brief. A switch of the power mode comes
        with a load, so sessions of another mode have to wait. So do engines with variants: a
        request would get the one that fits next to the head, not the one that its time pays for.
        A measurement is disturbed only once its query has turned out to be long.
        A request in the session of the last of the `leases` follows that one.
        """
        session, head = estimate.session, self.head
        if head is None:
            return False
        in_heads = session == head.session
        if in_heads and self.last is not None and self.last.session == session:
            return False  # as of most requests
        if not (self.takes_more and self.worker.cores and session in self.sessions):
            return False
        ours, theirs = session.configuration, head.session.configuration
        if ours.power_mode != theirs.power_mode:
            return False
        if head.phase is LeasePhase.SETUP and head.session not in self.sessions:
            return True
        if ours.variant or (head.estimate is None and not head.is_long_probe):
            return False
        if ours.execution_provider and ours.execution_provider == theirs.execution_provider:
            return False
        if in_heads:
            return is_brief(estimate, head)
        return is_brief(estimate, head) or ours.threads + theirs.threads <= self.worker.cores

    def runs_concurrently(self, estimate: Estimate) -> bool:
        """Return whether a further request of this cost runs concurrently with its `leases` now."""
        if not self.may_run_concurrently(estimate):
            return False
        session, head = estimate.session, self.head
        brief = head is None or is_brief(estimate, head)
        if (others := self.concurrent.get(session)) is not None:
            if (times := estimate.entry.batch_times) is not None:
                return len(others) < 2 * times.max_rows
            if brief:
                most, query_s = MAX_BRIEF_REQUESTS, estimate.typical_s
            else:
                most, query_s = MAX_REQUESTS, estimate.seconds(1, with_tensors=True)
            return len(others) < most and len(others) * query_s <= self.prefetch_s
        if head is None or brief:
            return len(self.concurrent) < MAX_BRIEF * self.worker.cores
        long = [
            each.configuration.threads
            for each, leases in self.concurrent.items()
            if not is_brief(next(iter(leases.values())).estimate, head)
        ]
        threads = session.configuration.threads + head.session.configuration.threads
        return not long or threads + sum(long) <= self.worker.cores

    def ahead_s(self, estimate: Estimate, now: float) -> float:
        """Return the expected seconds until it starts a further request of this cost."""
        if not self.may_run_concurrently(estimate):
            return self.free_at(now) - now
        return self.session_free_at(estimate.session, now) - now

    def session_free_at(self, session: Session, now: float) -> float:
        """Return when its concurrent assignments in a session are expected to be over."""
        leases = self.concurrent.get(session)
        if not leases:
            return now
        first, *others = leases.values()
        began_at = now if first.head_at is None else first.head_at
        return max(now, began_at + first.expected_s) + sum([each.expected_s for each in others])

    def free_at(self, now: float) -> float:
        """Return when all of its assignments are expected to be over.

        An abort that it has not answered is expected to take as long again: it may be hung.
        """
        if not self.leases:
            return now
        head = self.head
        unanswered_s = 0.0 if head is None or head.aborted_at is None else now - head.aborted_at
        return max(self.head_ends_at, now) + unanswered_s + self.behind_head_s

    def longest(self, now: float) -> Lease | None:
        """Return which of its `leases` is expected to take longest from now on."""
        left_s = {
            lease: self.head_ends_at - now if lease.is_head else lease.expected_s
            for lease in self.leases.values()
        }
        return max(left_s, key=left_s.__getitem__, default=None)

    def ends_at(self, lease: Lease, now: float) -> float:
        """Return when one of its assignments is expected to be over."""
        if lease.assignment.concurrent:
            return self.session_free_at(lease.session, now)
        at = max(self.head_ends_at, now)
        for each in self.leases.values():
            if not each.is_head:
                at += each.expected_s
            if each is lease:
                break
        return at

    def is_set_up_for(self, job: JobRecord, now: float) -> bool:
        """Return whether `job` would continue here without a pause, and so without setup."""
        return self.last_job is job and (bool(self.leases) or self.idle_since == now)

    def joins_batch(self, session: Session) -> bool:
        """Return whether the next request in `session` would join others in a batch."""
        if session in self.concurrent:
            return True
        last = self.groups[-1] if self.groups else None
        return last is not None and last.most > 1 and last.session == session

    def accepts(self, engine: EngineName, *, in_batches: bool, now: float) -> bool:
        """Return whether it takes an assignment of `engine` now, being available with batches.

        While it computes batches of one engine, requests of another engine gather behind them,
        unless they run concurrently. An assignment that would separate such requests waits.
        """
        last = self.groups[-1]
        if in_batches and last.session.engine == engine:
            return self._has_room(last)
        if in_batches and any(session.engine == engine for session in self.concurrent):
            return False
        if len(self.groups) == 1:
            return True
        return not in_batches and self.head_ends_at + self.behind_head_s - self.prefetch_s <= now

    def _has_room(self, last: Group) -> bool:
        """Return whether its last group takes another lease: of a batch, or two if it is alone."""
        return last.leases < (2 if len(self.groups) == 1 else 1) * last.most

    def next_available_at(self, settings: SchedulingSettings) -> float:
        """Return from when on it accepts an assignment: idle, or within the prefetch time of it.

        While it runs a job with tensors, it is sent the next assignment earlier by the time that
        the first input of that one takes to arrive. Time alone brings a worker no closer to idle
        than the work behind its head, so it may be that only an event makes it available. With
        batches, the next one is accepted while one is computed; see `accepts`.
        """
        if self.yielding:
            # What yields returns to the queue first: another job must not take its place.
            return math.inf
        if self.withdrawn or (self.on_trial and self.leases):
            return math.inf
        if not self.leases:
            return -math.inf
        last = self.groups[-1]
        if last.most > 1 and (len(self.groups) == 1 or self._has_room(last)):
            return -math.inf
        ahead_s = settings.prefetch_s
        if self.last is not None and self.last.brings_inputs:
            ahead_s = max(ahead_s, self._arrival_s(self.last.assignment.engine))
        if len(self.leases) >= settings.prefetch_count or self.behind_head_s > ahead_s:
            return math.inf
        return self.head_ends_at + self.behind_head_s - ahead_s

    def hear(self, now: float) -> None:
        """Note a sign of progress."""
        head = self.head
        if head is not None and head.head_at is not None:
            engine = head.assignment.engine
            silence_s = now - max(self.heard_at, head.head_at)
            longest_s = DECAY * self.silences_s.get(engine, 0.0)
            self.silences_s[engine] = max(silence_s, longest_s)
        self.heard_at = now

    def _arrival_s(self, engine: EngineName) -> float:
        """Return what the first input of another assignment of `engine` takes to arrive."""
        return min(self.observed.arrivals.get(engine, 0.0), MOST_AHEAD_S)

    def append(self, lease: Lease, now: float) -> None:
        """Add `lease` behind its other work, or concurrently."""
        if lease.assignment.concurrent:
            others = self.concurrent.setdefault(lease.session, {})
            if not others:
                lease.become_head(now)
            others[lease.assignment.id] = lease
            return
        if self.leases:
            self.behind_head_s += lease.expected_s
        else:
            lease.become_head(now)
            self.head = lease
            self.head_ends_at = now + lease.expected_s
        self._group(lease)
        self.last = lease
        self.last_job = lease.job
        self.requests += lease.job.is_request
        self.leases[lease.assignment.id] = lease

    def _group(self, lease: Lease) -> None:
        # The batches of a job are its own.
        times = lease.assignment.batch_times if lease.job.job.queries == 1 else None
        last = self.groups[-1] if self.groups else None
        if times is None or last is None or last.most == 1 or last.session != lease.session:
            lease.group = Group(lease.session, 1 if times is None else times.max_rows)
            self.groups.append(lease.group)
        else:
            lease.group = last
            last.leases += 1

    def stop(self, lease: Lease, now: float, *, for_request: bool = False) -> None:
        """Count no more work for `lease` but a long query, or any if it yields to a request."""
        lease.stop()
        if lease.assignment.concurrent:
            return
        self.yielding += for_request and not lease.yielding
        lease.yielding |= for_request
        if lease.is_head:
            left_s = lease.query_left_s(now) if for_request or lease.runs_long_query() else 0.0
            if lease.aborted_at is not None:
                left_s = min(left_s, ABORT_S)
            self.head_ends_at = min(self.head_ends_at, now + left_s)
        else:
            self._sum_behind_head()

    def remove(self, lease: Lease, now: float) -> None:
        """Remove `lease` at any position; the next one becomes the head."""
        if lease.assignment.concurrent:
            others = self.concurrent[lease.session]
            del others[lease.assignment.id]
            if not others:
                del self.concurrent[lease.session]
            elif lease.is_head:
                next(iter(others.values())).become_head(now)
            return
        del self.leases[lease.assignment.id]
        if (group := lease.group) is not None:
            group.leases -= 1
            if not group.leases:
                self.groups.remove(group)
        self.requests -= lease.job.is_request
        self.yielding -= lease.yielding
        if not self.leases:
            self.head = self.last = None
            self.behind_head_s = 0.0
            self.idle_since = now
            return
        if lease is self.last:
            self.last = next(reversed(self.leases.values()))
        if lease is self.head:
            head = self.head = next(iter(self.leases.values()))
            head.become_head(now)
            self.head_ends_at = now + head.expected_s
            if head.first_query_at is not None:  # which was reported before the end of this one
                queries_s = head.expected_s - head.assignment.setup_s
                self.head_ends_at = max(now, head.first_query_at + queries_s)
        self._sum_behind_head()

    def _sum_behind_head(self) -> None:
        # Summed from scratch: rounding errors of differences would accumulate.
        seconds = [lease.expected_s for lease in self.leases.values()]
        self.behind_head_s = sum(seconds[1:])


def is_brief(estimate: Estimate | None, head: Lease) -> bool:
    """Return whether queries of this cost are brief compared with what a worker runs at its head.

    They do not wait: the operating system shares the cores among the engine hosts fairly, so that
    brief queries are answered early, and what runs at the head keeps its share.

    Their mean may be long just because they share the cores, so the median decides.
    """
    query_s = MEASURED_S if head.is_long_probe else head.step_s
    longest_s = max(BRIEF_S, BRIEF_SHARE * query_s)
    return estimate is not None and estimate.typical_s <= longest_s
