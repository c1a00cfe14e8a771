"""What the core remembers of jobs and workers. Mutable, and touched by the core alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.scheduling.estimator import Estimate
    from gateway.scheduling.events import Assignment, SchedulingSettings, Worker
    from gateway.scheduling.ranges import Ranges
    from synergai.domain import AssignmentId, EngineName, Job, Session, WorkerId


@dataclass(slots=True, eq=False)
class Lease:
    """An assignment while it is out.

    Attributes:
        seconds: what it was estimated to take by itself, without what came before it.
        done: how many of its queries are recorded.
        head_at: when it became the first of its worker's assignments.
        first_query_at: when its setup was over, if the worker said so.
        reported_at: when it last reported progress, or its first query began.
        stopping: it was told to stop.
    """

    assignment: Assignment
    job: JobRecord
    estimate: Estimate | None
    seconds: float
    done: int = 0
    head_at: float | None = None
    first_query_at: float | None = None
    reported_at: float | None = None
    compute_s: float = 0.0
    setup_s: float = 0.0
    stopping: bool = False


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job while it is in the system.

    Attributes:
        sequence: order of arrival.
        pending: queries that are neither recorded nor out on a lease.
        ready: queries below this one can be run.
        rank: the policy's order key; lower goes first.
    """

    job: Job
    sequence: int
    pending: Ranges
    ready: int
    done: int = 0
    faults: int = 0
    rank: float = 0.0
    leases: dict[AssignmentId, Lease] = field(default_factory=dict)

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
        power_mode: the mode it was last dispatched in; None before the first assignment.
        leases: what it has to do, in its order of work.
        head_ends_at: when the first of them is expected to end.
        behind_head_s: what all the others are expected to take.
        idle_since: when it last ran out of work.
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

    @property
    def id(self) -> WorkerId:
        """The worker's id."""
        return self.worker.id

    def free_at(self, now: float) -> float:
        """When it is expected to be through with all that it has."""
        if not self.leases:
            return now
        return max(self.head_ends_at, now) + self.behind_head_s

    def available(self, now: float, settings: SchedulingSettings) -> bool:
        """Whether it may be given work: it is idle, or so nearly that the network would gain."""
        if self.draining:
            return False
        if not self.leases:
            return True
        return (
            len(self.leases) < settings.prefetch_count
            and self.free_at(now) - now <= settings.prefetch_s
        )

    def append(self, lease: Lease, now: float) -> None:
        """Put `lease` at the end of its work."""
        if self.leases:
            self.behind_head_s += lease.seconds
        else:
            lease.head_at = now
            self.head_ends_at = now + lease.seconds
        self.leases[lease.assignment.id] = lease

    def remove(self, lease: Lease, now: float) -> None:
        """Take `lease` out, whichever place it has; the next one becomes the head."""
        head = next(iter(self.leases.values()))
        del self.leases[lease.assignment.id]
        if lease is not head:
            self.behind_head_s = max(0.0, self.behind_head_s - lease.seconds)
            return
        if not self.leases:
            self.behind_head_s = 0.0
            self.idle_since = now
            return
        following = next(iter(self.leases.values()))
        following.head_at = now
        self.behind_head_s = max(0.0, self.behind_head_s - following.seconds)
        self.head_ends_at = now + following.seconds
