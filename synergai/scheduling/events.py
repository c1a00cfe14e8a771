"""What the core is told (events) and what it answers (commands).

Both are plain immutable values, so that a recorded run can be replayed and compared.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

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
    WorkerClass,
    WorkerId,
)
from synergai.errors import InvalidInput
from synergai.values import value

if TYPE_CHECKING:
    from synergai.profiles.dictionary import ProfileEntry


@value(kw_only=True)
class Worker:
    """A machine that has joined, as the scheduler sees it.

    Attributes:
        configurations: what it can be switched to.
        sessions: what is resident in its memory when it joins.
        power_mode: what it is in when it joins; empty if nobody knows.
        keeps_sessions: what it has loaded stays in memory; otherwise every assignment that does
            not continue the one before it pays for its setup.
    """

    id: WorkerId
    worker_class: WorkerClass
    engines: frozenset[EngineName]
    configurations: tuple[Configuration, ...]
    sessions: frozenset[Session] = frozenset()
    power_mode: str = ""
    keeps_sessions: bool = True


@value(kw_only=True)
class Assignment:
    """Queries [first, first + count) of a job, on a worker, in a configuration.

    Attributes:
        id: a fencing token; reports under an id that is not outstanding are refused.
        setup_s: what is estimated to be paid before the first query: load, switch.
        estimate_s: estimated time from dispatch to the last query, setup and the worker's
            earlier obligations included; 0 if nobody knows.
        query_s: estimated time of each of its queries; 0 if nobody knows.
        probe: the first queries of an engine that the dictionary lacks on this worker's class;
            they become its profile.
        batch_times: how long batches take there, if it may be computed together with others.
        compute_by: instant by which no batch may have made it late.
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


# --- events -----------------------------------------------------------------------------


@value()
class WorkerJoined:
    """A worker registered. If the id was known, its earlier life has ended."""

    worker: Worker


@value()
class WorkerDraining:
    """The worker finishes what it has and takes nothing new."""

    worker_id: WorkerId


@value()
class WorkerLeft:
    """The worker is gone; what it had not reported has to be run again."""

    worker_id: WorkerId


@value()
class EnginesChanged:
    """The set of engines that the worker can run is another."""

    worker_id: WorkerId
    engines: frozenset[EngineName]


@value()
class SessionLoaded:
    """The engine became resident; `setup_s` is what loading took, 0 if unknown."""

    worker_id: WorkerId
    session: Session
    setup_s: float = 0.0


@value()
class SessionDropped:
    """The engine is no longer resident."""

    worker_id: WorkerId
    session: Session


@value()
class ModeChanged:
    """The worker is in another power mode.

    Attributes:
        mode: what was read back; empty if it is none that is known.
        switch_s: what switching took on our behalf; 0 if somebody else did it.
    """

    worker_id: WorkerId
    mode: str
    switch_s: float = 0.0


@value()
class JobArrived:
    """Accepted work.

    Attributes:
        ready: how many of its queries can be run now, counted from the first: all of them,
            unless their tensors are still being streamed in.
        done: ranges that were recorded before a restart of the gateway.
    """

    job: Job
    ready: int
    done: tuple[tuple[int, int], ...] = ()


@value()
class QueriesReady:
    """More of the job's queries can be run: now the first `ready`."""

    job_id: JobId
    ready: int


@value()
class JobCancelled:
    """Nobody wants the rest of the job."""

    job_id: JobId


@value()
class AssignmentStarted:
    """Setup is over, the first query runs. Not sent for single queries."""

    assignment_id: AssignmentId
    setup_s: float


@value()
class QueriesDone:
    """The first `done` queries of the assignment are recorded.

    Attributes:
        done: counted from the assignment's start.
        compute_s: time inside the engine from the assignment's start; 0 if unknown.
    """

    assignment_id: AssignmentId
    done: int
    compute_s: float = 0.0


@value()
class AssignmentEnded:
    """The assignment is over; its first `done` queries are recorded.

    Attributes:
        compute_s: time inside the engine; 0 if unknown.
        batch: how many queries were computed in that time, of which its only one was one.
    """

    assignment_id: AssignmentId
    done: int
    outcome: Outcome
    fault: Fault = Fault.UNSPECIFIED
    detail: str = ""
    compute_s: float = 0.0
    batch: int = 1


@value()
class ProfileAdded:
    """The dictionary has a new or better entry."""

    entry: ProfileEntry


@value()
class TimePassed:
    """Nothing happened, but it is time to look again (see ``SchedulerCore.wakeup``)."""


Event: TypeAlias = (
    WorkerJoined
    | WorkerDraining
    | WorkerLeft
    | EnginesChanged
    | SessionLoaded
    | SessionDropped
    | ModeChanged
    | JobArrived
    | QueriesReady
    | JobCancelled
    | AssignmentStarted
    | QueriesDone
    | AssignmentEnded
    | ProfileAdded
    | TimePassed
)


# --- commands ---------------------------------------------------------------------------


@value()
class Dispatch:
    """Send the assignment to its worker."""

    assignment: Assignment


@value()
class Stop:
    """Stop the assignment at its next query; the worker will still report its end."""

    assignment_id: AssignmentId
    worker_id: WorkerId


@value()
class Finish:
    """All queries of the job are recorded."""

    job_id: JobId


@value()
class Fail:
    """The job cannot be finished; `fault` and `reason` say why."""

    job_id: JobId
    reason: str
    fault: Fault = Fault.UNSPECIFIED


@value()
class Reject:
    """No worker can finish the job in time, and the gateway is told to refuse such work."""

    job_id: JobId
    reason: str


@value()
class Expire:
    """The perishable job's deadline has passed."""

    job_id: JobId


@value()
class Learned:
    """A probe's queries became a profile entry, labelled ``observed``."""

    entry: ProfileEntry


Command: TypeAlias = Dispatch | Stop | Finish | Fail | Reject | Expire | Learned


@value(kw_only=True)
class SchedulingSettings:
    """What the operator chooses about scheduling.

    Attributes:
        policy: name in the registry of policies.
        objective: ``latency`` takes each worker's fastest configuration (thesis); ``energy``
            takes, among the workers and configurations that meet the deadline, the one with the
            least joules per query.
        infeasible: ``defer`` runs work that no worker can finish in time last (thesis);
            ``reject`` refuses it.
        fair_burst_s: how much more worker time than its equal share a tenant may have had
            before its jobs yield to others of the same priority; infinite switches that off.
        fair_half_life_s: worker time that was used this long ago weighs one half.
        prefetch_s: a worker gets its next assignment while it still has this much to do, so
            that it never waits for the network.
        prefetch_count: how many assignments a worker may have at once.
        probe_queries: how many queries measure an engine that the dictionary lacks.
        max_faults: how often a job's assignments may fail before the job does.
        reassess_s: how long observed paces and shares may drift before waiting jobs are ranked
            anew (thesis: periodic update).
        pace_half_life_s: observed time after which an old belief about a worker's pace weighs
            one half.
        pace_trust: how much a single assignment may at most move that belief, 1 being wholly.
        mode_switch_s: what a change of the power mode is taken to cost on a worker that has not
            shown it yet.
        options: options of the policy itself, by name.

    Raises:
        InvalidInput: on construction, if a value is out of its range.
    """

    policy: str = "synergai"
    objective: str = "latency"
    infeasible: str = "defer"
    fair_burst_s: float = 60.0
    fair_half_life_s: float = 300.0
    prefetch_s: float = 0.02
    prefetch_count: int = 64
    probe_queries: int = 16
    max_faults: int = 3
    reassess_s: float = 1.0
    pace_half_life_s: float = 2.0
    pace_trust: float = 0.25
    mode_switch_s: float = 5.0
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in (
            ("infeasible", ("defer", "reject")),
            ("objective", ("latency", "energy")),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise InvalidInput(
                    f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}"
                )
        for name in ("fair_burst_s", "prefetch_s", "mode_switch_s"):
            if not getattr(self, name) >= 0:
                raise InvalidInput(f"{name} must be 0 or more, not {getattr(self, name)}")
        for name in ("fair_half_life_s", "reassess_s", "pace_half_life_s", "pace_trust"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("prefetch_count", "probe_queries", "max_faults"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.pace_trust > 1:
            raise InvalidInput(f"pace_trust must be at most 1, not {self.pace_trust}")
