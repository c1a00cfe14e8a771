"""What the core remembers of jobs and workers. Mutable, and touched by the core alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from synergai.domain import Session

if TYPE_CHECKING:
    from synergai.domain import AssignmentId, EngineName, Job, WorkerId
    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.events import Assignment, SchedulingSettings, Worker
    from synergai.scheduling.queue import Lane
    from synergai.scheduling.ranges import Ranges


@dataclass(slots=True, eq=False)
class Lease:
    """An assignment while it is out.

    Attributes:
        seconds: what it was estimated to take by itself, without what came before it; infinite
            if nobody knows.
        given_at: when it was given.
        pace_before: what was believed of its worker's pace before its first report.
        done: how many of its queries are recorded.
        head_at: when it became the first of its worker's assignments.
        first_query_at: when its setup was over, if the worker said so.
        reported_at: when it last reported progress, or its first query began.
        compute_s: time inside the engine so far, as far as it was reported.
        setup_s: what its setup took, if the worker said so.
        stopping: it was told to stop.
        batch: how many queries were computed together, of which its only one was one.
        session: what is resident on its worker while it runs.
    """

    assignment: Assignment
    job: JobRecord
    estimate: Estimate | None
    seconds: float
    given_at: float
    pace_before: float | None = None
    done: int = 0
    head_at: float | None = None
    first_query_at: float | None = None
    reported_at: float | None = None
    compute_s: float = 0.0
    setup_s: float = 0.0
    stopping: bool = False
    batch: int = 1
    session: Session = field(init=False)

    def __post_init__(self) -> None:
        if self.estimate is not None:
            self.session = self.estimate.session
        else:
            self.session = Session(self.assignment.engine, self.assignment.configuration)

    @property
    def left(self) -> int:
        """Queries that it has not recorded yet."""
        return self.assignment.count - self.done


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job while it is in the system.

    Attributes:
        sequence: order of arrival.
        pending: queries that are neither recorded nor out on a lease.
        ready: queries below this one can be run.
        latest_start: when the fastest worker would have to begin what is pending.
        rank: the policy's order key; lower goes first.
        lane: where it waits; None while it does not.
        paces: seconds per second of the profile that workers have shown on this very job.
        gone: it has left the system; what is still out of it is of no use.
    """

    job: Job
    sequence: int
    pending: Ranges
    ready: int
    done: int = 0
    faults: int = 0
    latest_start: float = math.inf
    rank: float = 0.0
    lane: Lane | None = None
    leases: dict[AssignmentId, Lease] = field(default_factory=dict)
    paces: dict[WorkerId, float] = field(default_factory=dict)
    gone: bool = False

    @property
    def left(self) -> int:
        """Queries that are not recorded yet."""
        return self.job.queries - self.done

    @property
    def leasable(self) -> int:
        """Queries that could be given to a worker now."""
        return self.pending.available(self.ready)


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """A worker while it is part of the fleet.

    Attributes:
        index: order of joining; breaks ties.
        power_mode: the mode it will be in once it is through with its work; None if nobody knows.
        leases: what it has to do, in its order of work.
        head_ends_at: when the first of them is expected to end.
        behind_head_s: what all the others are expected to take.
        idle_since: when it last ran out of work.
        batch: the largest batch that all it has to do may be part of; 1 if that is not all of
            one session, or not for batches.
        available_at: from when on it may be given work, unless something happens before.
        last_job: what it was given last.
        estimates: what engines cost on it, as far as anybody asked since it changed.
    """

    worker: Worker
    index: int
    engines: set[EngineName]
    sessions: set[Session]
    power_mode: str | None = None
    draining: bool = False
    leases: dict[AssignmentId, Lease] = field(default_factory=dict)
    head_ends_at: float = 0.0
    behind_head_s: float = 0.0
    idle_since: float = 0.0
    batch: int = 1
    available_at: float = math.inf
    last_job: JobRecord | None = None
    estimates: dict[EngineName, tuple[Estimate, ...]] = field(default_factory=dict)

    @property
    def id(self) -> WorkerId:
        """The worker's id."""
        return self.worker.id

    def free_at(self, now: float) -> float:
        """When it is expected to be through with all that it has."""
        if not self.leases:
            return now
        return max(self.head_ends_at, now) + self.behind_head_s

    def is_set_up_for(self, job: JobRecord, now: float) -> bool:
        """Whether `job` would only go on here, without a pause and so without a setup."""
        return self.last_job is job and (bool(self.leases) or self.idle_since == now)

    def gathers(self, session: Session) -> bool:
        """Whether what comes next for `session` would wait among others to be in its batch."""
        return self.batch > 1 and next(iter(self.leases.values())).session == session

    def next_available_at(self, settings: SchedulingSettings) -> float:
        """From when on it may be given work: idle, or so nearly that the network would gain.

        Time alone brings a worker no nearer to idleness than the rest of its work behind the
        first assignment; so it may be that only an event can make it available. One that computes
        batches gets the next one while it computes.
        """
        if self.draining or len(self.leases) >= settings.prefetch_count:
            return math.inf
        if not self.leases:
            return -math.inf
        if self.batch > 1 and len(self.leases) < 2 * self.batch:
            return -math.inf
        if self.behind_head_s > settings.prefetch_s:
            return math.inf
        return self.head_ends_at + self.behind_head_s - settings.prefetch_s

    def append(self, lease: Lease, now: float) -> None:
        """Put `lease` at the end of its work."""
        times = lease.assignment.batch_times
        if self.leases:
            self.behind_head_s += lease.seconds
            if times is None or not self.gathers(lease.session):
                self.batch = 1
        else:
            self.batch = 1 if times is None else times.most
            lease.head_at = now
            self.head_ends_at = now + lease.seconds
        self.last_job = lease.job
        self.leases[lease.assignment.id] = lease

    def stop(self, lease: Lease, now: float) -> None:
        """Count no more work for `lease`, which was told to stop."""
        lease.seconds = 0.0
        if lease.head_at is not None:
            self.head_ends_at = min(self.head_ends_at, now)
        else:
            self._sum_behind_head()

    def remove(self, lease: Lease, now: float) -> None:
        """Take `lease` out, whichever place it has; the next one becomes the head."""
        was_head = lease.head_at is not None
        del self.leases[lease.assignment.id]
        if not self.leases:
            self.idle_since = now
            self.batch = 1
        elif was_head:
            head = next(iter(self.leases.values()))
            head.head_at = now
            self.head_ends_at = now + head.seconds
        self._sum_behind_head()

    def _sum_behind_head(self) -> None:
        if len(self.leases) < 2:
            self.behind_head_s = 0.0
            return
        # Summed anew each time: what rounding leaves of a difference would never go away.
        seconds = [lease.seconds for lease in self.leases.values()]
        self.behind_head_s = sum(seconds[1:])
