"""Scheduling cores with profiles, workers and jobs, and what they command."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.core.scheduling.state.jobs import JobRecord, Ranges
from synergai.domain import (
    AssignmentId,
    Configuration,
    EngineName,
    Job,
    JobId,
    Outcome,
    Session,
    WorkerClass,
    WorkerId,
)
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry

ONE = Configuration(1)
"""A single thread."""


def make_core(
    entries: Iterable[ProfileEntry], workers: Iterable[events.Worker] = (), **settings: object
) -> SchedulerCore:
    """Return a core that has a profile, with workers that joined at 0 s."""
    core = SchedulerCore(
        msgspec.convert(settings, SchedulingSettings), ConfigurationDictionary(entries)
    )
    for worker in workers:
        core.handle(events.WorkerJoined(worker), 0.0)
    return core


def new_entry(
    engine: str,
    worker_class: str,
    qps: float,
    configuration: Configuration = ONE,
    **fields: Any,
) -> ProfileEntry:
    entry = ProfileEntry(
        engine=EngineName(engine),
        worker_class=WorkerClass(worker_class),
        configuration=configuration,
        qps=qps,
    )
    return replace(entry, **fields)


def new_worker(
    name: str,
    worker_class: str,
    engines: Iterable[str],
    configurations: Sequence[Configuration] = (ONE,),
    *,
    loaded: bool | Iterable[str | Session] = True,
    **fields: Any,
) -> events.Worker:
    offered = frozenset(map(EngineName, engines))
    if isinstance(loaded, bool):
        loaded = offered if loaded else ()
    sessions = set[Session]()
    for each in loaded:
        if isinstance(each, Session):
            sessions.add(each)
        else:
            sessions.update(Session(EngineName(each), with_) for with_ in configurations)
    worker = events.Worker(
        id=WorkerId(name),
        worker_class=WorkerClass(worker_class),
        engines=offered,
        configurations=tuple(configurations),
        sessions=frozenset(sessions),
    )
    return replace(worker, **fields)


def new_job(
    name: str,
    engine: str,
    queries: int = 1,
    now: float = 0.0,
    *,
    ready: int | None = None,
    **fields: Any,
) -> events.JobArrived:
    """Return the arrival of a job, all of whose queries are ready unless `ready` says less."""
    job = Job(id=JobId(name), engine=EngineName(engine), queries=queries, arrival=now)
    return events.JobArrived(replace(job, **fields), queries if ready is None else ready)


def new_request(name: str, engine: str, now: float = 0.0, **fields: Any) -> events.JobArrived:
    return new_job(name, engine, 1, now, **{"perishable": True, "with_tensors": True, **fields})


def new_record(name: str, engine: str, sequence: int = 0, **fields: Any) -> JobRecord:
    """Return the record of a job with one query that waits."""
    job = new_job(name, engine, **fields).job
    return JobRecord(job, sequence, Ranges.complement((), 1), 1)


def new_assignment(
    number: int,
    engine: str,
    worker: str,
    count: int = 1,
    configuration: Configuration = ONE,
    **fields: Any,
) -> events.Assignment:
    """Return an assignment of the first queries of a job, without an estimate."""
    assignment = events.Assignment(
        id=AssignmentId(number),
        job_id=JobId("job"),
        engine=EngineName(engine),
        worker_id=WorkerId(worker),
        configuration=configuration,
        first=0,
        count=count,
        setup_s=0.0,
        estimate_s=0.0,
    )
    return replace(assignment, **fields)


def dispatched(commands: Iterable[events.Command]) -> list[events.Assignment]:
    return [command.assignment for command in commands if isinstance(command, events.Dispatch)]


def started(core: SchedulerCore, job: events.JobArrived, now: float = 0.0) -> events.Assignment:
    """Let a job arrive that one worker runs at once; return its assignment, which has started."""
    [assignment] = dispatched(core.handle(job, now))
    core.handle(events.AssignmentStarted(assignment.id, 0.0), now)
    return assignment


def end(
    core: SchedulerCore,
    assignment: events.Assignment,
    now: float,
    outcome: Outcome = Outcome.COMPLETED,
    *,
    done: int | None = None,
    **fields: Any,
) -> list[events.Command]:
    """Let an assignment end, with all of its queries unless `done` says less."""
    done = assignment.count if done is None else done
    return core.handle(events.AssignmentEnded(assignment.id, done, outcome, **fields), now)


def wakeup_of(core: SchedulerCore) -> float:
    """Return when a core is to be called again that waits for something."""
    wakeup = core.wakeup()
    assert wakeup is not None
    return wakeup
