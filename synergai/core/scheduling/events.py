"""Inputs (events) and outputs (commands) of the scheduling core.

Plain immutable values, so that a recorded run can be replayed and compared.
"""

from __future__ import annotations

import math

from msgspec import Struct

from synergai.domain import (
    AssignmentId,
    BatchTimes,
    Configuration,
    EngineName,
    Fault,
    Job,
    JobId,
    Outcome,
    Session,
    Variant,
    WorkerClass,
    WorkerId,
)
from synergai.profiles.dictionary import ProfileEntry  # noqa: TC001  # msgspec resolves it


class SessionSize(Struct, frozen=True):
    """Memory that a session takes on a worker, in bytes."""

    session: Session
    bytes: int


class Worker(Struct, frozen=True, kw_only=True):
    """A worker as the scheduler sees it when it joins.

    Attributes:
        worker_class: workers of one class share profiles.
        power_mode: its current mode; empty if unknown.
        keeps_sessions: loaded sessions stay in memory; otherwise every assignment that does not
            continue the previous one pays for setup.
        unusable: engines with the configurations that it cannot run them in.
        variants: the variants that it has of each engine; engines without any are left out.
        query_s: seconds of a query of an engine with one thread, as far as they are known.
        memory_bytes: memory for its sessions; 0 if it is not known.
        session_bytes: memory of a session by engine, as far as it is known.
        session_sizes: memory of single sessions, which overrides `session_bytes`.
        pinned: sessions that it always keeps.
        cores: CPU cores of its engines, for concurrent requests; 0 if it runs one
            assignment after another.
    """

    id: WorkerId
    worker_class: WorkerClass
    engines: frozenset[EngineName]
    configurations: tuple[Configuration, ...]
    sessions: frozenset[Session] = frozenset()
    power_mode: str = ""
    keeps_sessions: bool = True
    unusable: frozenset[Session] = frozenset()
    variants: dict[EngineName, tuple[Variant, ...]] = {}
    query_s: dict[EngineName, float] = {}
    memory_bytes: int = 0
    session_bytes: dict[EngineName, int] = {}
    session_sizes: tuple[SessionSize, ...] = ()
    pinned: frozenset[Session] = frozenset()
    cores: int = 0


class Assignment(Struct, frozen=True, kw_only=True):
    """Queries [first, first + count) of a job on a worker in a configuration.

    Attributes:
        id: fencing token; reports under an id that is not in flight are rejected.
        setup_s: estimated setup before the first query: loading and mode switch.
        estimate_s: estimated time from dispatch to the last query, including setup and the work
            ahead of it; 0 if unknown.
        query_s: estimated time per query; 0 if unknown.
        probe: the queries measure an engine that the dictionary lacks on this worker's class.
        batch_times: batch latencies, if it may be batched with other assignments.
        compute_by: latest completion of a batch that includes it.
        concurrent: it waits for no assignment in another session; see
            ``synergai.core.scheduling.rules.concurrency``.
    """

    id: AssignmentId
    job_id: JobId
    engine: EngineName
    worker_id: WorkerId
    configuration: Configuration
    first: int
    count: int
    setup_s: float = 0.0
    estimate_s: float = 0.0
    query_s: float = 0.0
    probe: bool = False
    batch_times: BatchTimes | None = None
    compute_by: float = math.inf
    concurrent: bool = False


# --- events -----------------------------------------------------------------------------


class Event(Struct, frozen=True):
    """What the core is told."""


class WorkerJoined(Event, frozen=True):
    """A worker registered. If its id is known, the worker has restarted."""

    worker: Worker


class WorkerDraining(Event, frozen=True):
    """The worker finishes its assignments and accepts no new ones."""

    worker_id: WorkerId


class WorkerLeft(Event, frozen=True):
    """The worker disconnected; its unreported queries must run again."""

    worker_id: WorkerId


class EnginesChanged(Event, frozen=True):
    """The set of engines that the worker can run changed, or their variants did."""

    worker_id: WorkerId
    engines: frozenset[EngineName]
    variants: dict[EngineName, tuple[Variant, ...]] = {}
    query_s: dict[EngineName, float] = {}


class ConfigurationsUnusable(Event, frozen=True):
    """All configurations in which the worker cannot run an engine that it has."""

    worker_id: WorkerId
    engine: EngineName
    configurations: frozenset[Configuration]


class SessionLoaded(Event, frozen=True):
    """A session became resident.

    Attributes:
        setup_s: load time; 0 if unknown.
        bytes: memory that it takes; 0 if unknown.
    """

    worker_id: WorkerId
    session: Session
    setup_s: float = 0.0
    bytes: int = 0


class SessionDropped(Event, frozen=True):
    """A session is no longer resident, or was not loaded.

    Attributes:
        no_room: the worker had no memory to preload it, or to keep it.
        bytes: memory that it takes, or more; 0 if unknown.
    """

    worker_id: WorkerId
    session: Session
    no_room: bool = False
    bytes: int = 0


class ModeChanged(Event, frozen=True):
    """The worker's power mode changed; `mode` is read back, and empty if unknown.

    Attributes:
        switch_s: duration of a switch on the gateway's behalf; 0 if switched by someone else.
    """

    worker_id: WorkerId
    mode: str
    switch_s: float = 0.0


class JobArrived(Event, frozen=True):
    """A job was accepted.

    Attributes:
        ready: number of queries that can run now, from the first: all, unless it is a stage whose
            inputs are still being computed.
        done: ranges recorded before a restart of the gateway.
    """

    job: Job
    ready: int
    done: tuple[tuple[int, int], ...] = ()


class QueriesReady(Event, frozen=True):
    """More of the job's queries can run: now the first `ready`."""

    job_id: JobId
    ready: int


class JobCancelled(Event, frozen=True):
    """The rest of the job is no longer wanted."""

    job_id: JobId


class AssignmentsRevoked(Event, frozen=True):
    """Reports of the worker are no longer trusted: its assignments must run elsewhere."""

    worker_id: WorkerId


class AssignmentStarted(Event, frozen=True):
    """Setup is over, the first query runs. Not sent for single queries."""

    assignment_id: AssignmentId
    setup_s: float


class QueriesDone(Event, frozen=True):
    """The first `done` queries of the assignment are recorded.

    `compute_s` is the time inside the engine since the assignment's start; 0 if unknown.
    """

    assignment_id: AssignmentId
    done: int
    compute_s: float = 0.0


class AssignmentEnded(Event, frozen=True):
    """The assignment is over; its first `done` queries are recorded.

    Attributes:
        compute_s: time inside the engine; 0 if unknown.
        batch: number of queries computed together in that time, its own single query included.
    """

    assignment_id: AssignmentId
    done: int
    outcome: Outcome
    fault: Fault = Fault.UNSPECIFIED
    detail: str = ""
    compute_s: float = 0.0
    batch: int = 1


class ProfilesAdded(Event, frozen=True):
    """The dictionary has new or better entries."""

    entries: tuple[ProfileEntry, ...]


class ProfilesRemoved(Event, frozen=True):
    """Entries are no longer in the dictionary; paces relative to them are void."""

    entries: tuple[ProfileEntry, ...]


class TimePassed(Event, frozen=True):
    """The instant of ``SchedulerCore.wakeup`` has come."""


class ProgressChecked(Event, frozen=True):
    """It is time to look for workers that make no progress.

    All reports that have arrived were handled; otherwise queries that were reported, but not yet
    recorded, would run again.
    """


# --- commands ---------------------------------------------------------------------------


class Command(Struct, frozen=True):
    """What the core tells its driver to do."""


class Dispatch(Command, frozen=True):
    """Send the assignment to its worker."""

    assignment: Assignment


class Stop(Command, frozen=True):
    """Stop the assignment at its next query; the worker still reports its end.

    With `abort`, the query that runs is also aborted if the runtime can do that; its work is lost.
    """

    assignment_id: AssignmentId
    worker_id: WorkerId
    abort: bool = False


class Revoke(Command, frozen=True):
    """Take the assignment back: stop it, and ignore further reports on it."""

    assignment_id: AssignmentId
    worker_id: WorkerId


class Load(Command, frozen=True):
    """Preload a session; ``SessionLoaded`` or ``SessionDropped`` follows.

    Attributes:
        estimate_s: estimated time until it is loaded, with the work ahead of it; 0 if unknown.
    """

    worker_id: WorkerId
    session: Session
    estimate_s: float = 0.0


class Unload(Command, frozen=True):
    """Drop a session that no assignment uses, to make room; ``SessionDropped`` follows."""

    worker_id: WorkerId
    session: Session


class Eject(Command, frozen=True):
    """The worker made no progress and gets no assignments for `pause_s` seconds.

    Attributes:
        engine: the only engine that it made no progress with; None for the whole worker.
    """

    worker_id: WorkerId
    pause_s: float
    engine: EngineName | None = None


class Pause(Command, frozen=True):
    """An engine host of the worker crashed while it computed a variant, which pauses there."""

    worker_id: WorkerId
    session: Session
    pause_s: float


class Finish(Command, frozen=True):
    """All queries of the job are recorded."""

    job_id: JobId


class Fail(Command, frozen=True):
    """The job failed for good; `fault` and `reason` say why."""

    job_id: JobId
    reason: str
    fault: Fault = Fault.UNSPECIFIED


class Reject(Command, frozen=True):
    """No worker can finish the job in time, and infeasible jobs are configured to be rejected."""

    job_id: JobId
    reason: str


class Expire(Command, frozen=True):
    """The perishable job's deadline has passed."""

    job_id: JobId


class Learned(Command, frozen=True):
    """Queries in service gave a profile entry, labelled ``observed``."""

    entry: ProfileEntry
