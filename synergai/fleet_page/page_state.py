"""The state that the fleet page shows, kept from the events and commands of the scheduling core.

A running gateway and a recorded event log feed the same state. It is bounded: of what has ended it
keeps the newest, and of many single requests at a time it counts the surplus only.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct, json

from synergai.core.scheduling import events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai import domain
    from synergai.core.routes.deployment import EngineDeployment
    from synergai.core.scheduling.events import Command, Event


# A record replaces an earlier one of the same kind and id, so a state and a change of it look
# alike. Times are seconds on the gateway's monotonic clock; an infinite one becomes null.


def _kind(name: str) -> str:
    return name.removeprefix("Page").lower()


class PageRecord(Struct, kw_only=True, tag_field="kind", tag=_kind, omit_defaults=True, gc=False):
    """Anything that the page shows; `id` is unique among the records of a kind."""

    id: str


class PageWorker(PageRecord, kw_only=True):
    """A worker; `state` is ``serving``, ``draining``, ``ejected`` or ``left``."""

    worker_class: str
    engines: tuple[str, ...] = ()
    state: str = "serving"
    mode: str = ""
    watts: float | None = None


class PageJob(PageRecord, kw_only=True):
    """A job, or a single request; `state` is ``open`` until it ends."""

    engine: str
    queries: int
    arrival: float
    deadline: float = math.inf
    priority: int = 0
    tenant: str = ""
    single: bool = False
    state: str = "open"
    ended: float | None = None
    reason: str = ""


class PageAssignment(PageRecord, kw_only=True):
    """Queries of a job on a worker, from their dispatch at `at` until they ended there.

    Attributes:
        setup_s: estimated; `estimate_s` includes it, and the work ahead on the worker.
        started: when setup was over, as far as the worker told.
    """

    job: str
    worker: str
    engine: str
    configuration: str
    first: int
    count: int
    at: float
    setup_s: float = 0.0
    estimate_s: float = 0.0
    started: float | None = None
    done: int = 0
    ended: float | None = None
    outcome: str = ""
    detail: str = ""


class PageDeployment(PageRecord, kw_only=True):
    """An engine that the gateway deploys in stages; `state` is ``gone`` if it no longer does."""

    state: str
    where: str = ""
    why: str = ""


class Incident(PageRecord, kw_only=True):
    """An event of the fleet, for people."""

    at: float
    text: str
    worker: str = ""


class Second(PageRecord, kw_only=True):
    """What ended within one second; `omitted` is the number of requests without a record."""

    at: int
    met: int = 0
    violated: int = 0
    omitted: int = 0


class Batch(Struct, gc=False):
    """The records that changed until a time."""

    at: float
    records: list[PageRecord]


encode = json.Encoder().encode


KEPT: Final = 10_000
"""Assignments, and jobs, that are kept once they have ended."""
KEPT_INCIDENTS: Final = 300
KEPT_SECONDS: Final = 1800
MAX_REQUESTS: Final = 40
"""Single requests with a record, by interval between two batches."""
INTERVAL_S: Final = 0.25
"""Time between two batches."""
_text: Final = lru_cache(maxsize=1024)(str)
_ENDINGS: Final = {
    events.Finish: "finished",
    events.Fail: "failed",
    events.Reject: "rejected",
    events.Expire: "expired",
}


@dataclass(slots=True)
class PageState:
    """The state of the page.

    Attributes:
        watched: whether changes are collected for `take`.
    """

    watched: bool = False
    _workers: dict[str, PageWorker] = field(default_factory=dict)
    _jobs: dict[str, PageJob] = field(default_factory=dict)
    _assignments: dict[int, PageAssignment] = field(default_factory=dict)
    _running: dict[str, dict[int, PageAssignment]] = field(default_factory=dict)  # by worker
    _deployments: dict[str, PageDeployment] = field(default_factory=dict)
    _incidents: deque[Incident] = field(default_factory=lambda: deque(maxlen=KEPT_INCIDENTS))
    _seconds: deque[Second] = field(default_factory=lambda: deque(maxlen=KEPT_SECONDS))
    _ended_jobs: deque[str] = field(default_factory=deque)
    _ended_assignments: deque[int] = field(default_factory=deque)
    _omitted: dict[str, float] = field(default_factory=dict)
    _changed: dict[int, PageRecord] = field(default_factory=dict)
    _interval: float = 0.0
    _requests: int = 0
    _count: int = 0

    def state(self) -> list[PageRecord]:
        """Return everything."""
        parts = (
            self._workers.values(),
            self._deployments.values(),
            self._jobs.values(),
            self._assignments.values(),
            self._incidents,
            self._seconds,
        )
        return [record for part in parts for record in part]

    def take(self) -> list[PageRecord]:
        """Return what changed since the last call, while the page is watched."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    def power(self, worker_id: str, mode: str, watts: float | None) -> None:
        worker = self._workers.get(worker_id)
        if worker is not None and (worker.mode, worker.watts) != (mode, watts):
            worker.mode, worker.watts = mode, watts
            self._note(worker)

    def deploy(self, deployments: Iterable[EngineDeployment]) -> None:
        before, self._deployments = self._deployments, {}
        for each in deployments:
            record = PageDeployment(
                id=each.engine, state=each.state, where=each.where, why=each.why
            )
            known = before.pop(record.id, None)
            self._deployments[record.id] = record = known if known == record else record
            if record is not known:
                self._note(record)
        for left in before.values():
            left.state = "gone"
            self._note(left)

    def record(self, event: Event, now: float, commands: list[Command]) -> None:
        """Follow an event of the core, and the commands that it led to."""
        match event:
            case events.JobArrived(job):
                self._arrive(job, now)
            case events.AssignmentEnded():
                self._end_reported(event, now)
            case events.JobCancelled(job_id):
                self._end_job(job_id, "cancelled", "", now)
            case events.AssignmentStarted(assignment_id):
                if (assignment := self._assignments.get(assignment_id)) is not None:
                    assignment.started = now
                    self._note(assignment)
            case events.QueriesDone(assignment_id, done):
                if (assignment := self._assignments.get(assignment_id)) is not None:
                    assignment.done = done
                    self._note(assignment)
            case _:
                self._follow_worker(event, now)
        for command in commands:
            match command:
                case events.Dispatch(given):
                    self._dispatch(given, now)
                case events.Finish(job_id):
                    self._end_job(job_id, "finished", "", now)
                case _:
                    self._follow(command, now)

    def _follow_worker(self, event: Event, now: float) -> None:
        match event:
            case events.WorkerJoined(joined):
                self._leave(joined.id, now, "worker restarted")
                self._workers[joined.id] = worker = PageWorker(
                    id=joined.id,
                    worker_class=joined.worker_class,
                    engines=tuple(sorted(joined.engines)),
                    mode=joined.power_mode,
                )
                self._note(worker)
                self._tell(now, f"joined, of class {joined.worker_class}", joined.id)
            case events.WorkerLeft(worker_id):
                self._leave(worker_id, now, "worker left")
                self._set_state(worker_id, "left", now)
                self._workers.pop(worker_id, None)
            case events.WorkerDraining(worker_id):
                self._set_state(worker_id, "draining", now)
            case events.AssignmentsRevoked(worker_id):
                self._leave(worker_id, now, "revoked")
                self._tell(now, "its assignments were revoked", worker_id)
            case events.EnginesChanged(worker_id, engines):
                if (changed := self._workers.get(worker_id)) is not None:
                    changed.engines = tuple(sorted(engines))
                    self._note(changed)
            case events.ModeChanged(worker_id, mode):
                if (changed := self._workers.get(worker_id)) is not None:
                    self.power(worker_id, mode, changed.watts)
                    self._tell(now, f"power mode {mode or 'unknown'}", worker_id)
            case events.SessionDropped(worker_id, session, no_room=True):
                self._tell(now, f"no room for {session}", worker_id)

    def _follow(self, command: Command, now: float) -> None:
        match command:
            case events.Fail(job_id, reason) | events.Reject(job_id, reason):
                self._end_job(job_id, _ENDINGS[type(command)], reason, now)
            case events.Expire(job_id):
                self._end_job(job_id, "expired", "", now)
            case events.Revoke(assignment_id):
                self._end(assignment_id, "revoked", "", now)
            case events.Eject(worker_id, pause_s, str(engine)):
                self._tell(now, f"no progress with {engine}, for {pause_s:.0f} s", worker_id)
            case events.Eject(worker_id, pause_s):
                self._set_state(worker_id, "ejected", now, f" for {pause_s:.0f} s: no progress")
            case events.Pause(worker_id, session, pause_s):
                self._tell(now, f"{session} crashed, paused for {pause_s:.0f} s", worker_id)
            case events.Load(worker_id, session):
                self._tell(now, f"preloads {session}", worker_id)

    def _arrive(self, job: domain.Job, now: float) -> None:
        if job.perishable:
            if now >= self._interval + INTERVAL_S:
                self._interval, self._requests = now, 0
            self._requests += 1
            if self._requests > MAX_REQUESTS:
                self._omitted[job.id] = job.deadline
                return
        self._jobs[job.id] = record = PageJob(
            id=job.id,
            engine=job.engine,
            queries=job.queries,
            arrival=job.arrival,
            deadline=job.deadline,
            priority=job.priority,
            tenant=job.tenant,
            single=job.perishable,
        )
        self._note(record)

    def _dispatch(self, given: events.Assignment, now: float) -> None:
        if given.job_id in self._omitted:
            return
        key = given.id
        self._assignments[key] = record = PageAssignment(
            id=str(key),
            job=given.job_id,
            worker=given.worker_id,
            engine=given.engine,
            configuration=_text(given.configuration),
            first=given.first,
            count=given.count,
            at=now,
            setup_s=given.setup_s,
            estimate_s=given.estimate_s,
        )
        worker = self._workers.get(given.worker_id)
        if worker is not None and worker.state == "ejected":
            worker.state = "serving"
            self._note(worker)
        self._running.setdefault(record.worker, {})[key] = record
        self._note(record)

    def _end_reported(self, event: events.AssignmentEnded, now: float) -> None:
        assignment = self._assignments.get(event.assignment_id)
        if assignment is None or assignment.ended is not None:
            return
        assignment.done = event.done
        outcome = event.outcome.name.lower()
        self._end(event.assignment_id, outcome, event.detail, now)
        if outcome == "failed":
            self._tell(now, f"{assignment.engine} failed: {event.detail}", assignment.worker)

    def _end(self, key: int, outcome: str, detail: str, now: float) -> None:
        assignment = self._assignments.get(key)
        if assignment is None or assignment.ended is not None:
            return
        assignment.ended, assignment.outcome, assignment.detail = now, outcome, detail
        self._note(assignment)
        self._running.get(assignment.worker, {}).pop(key, None)
        self._ended_assignments.append(key)
        if len(self._ended_assignments) > KEPT:
            del self._assignments[self._ended_assignments.popleft()]

    def _leave(self, worker_id: str, now: float, detail: str) -> None:
        """End what a worker was computing."""
        for key in list(self._running.pop(worker_id, ())):
            self._end(key, "revoked", detail, now)

    def _end_job(self, job_id: str, state: str, reason: str, now: float) -> None:
        deadline = self._omitted.pop(job_id, None)
        surplus = deadline is not None
        if deadline is None:
            job = self._jobs.get(job_id)
            if job is None or job.ended is not None:
                return
            deadline = job.deadline
            job.state, job.ended, job.reason = state, now, reason
            self._note(job)
            self._ended_jobs.append(job_id)
            if len(self._ended_jobs) > KEPT:
                self._jobs.pop(self._ended_jobs.popleft(), None)
            if state in {"failed", "rejected"}:
                self._tell(now, f"{job_id} {state}: {reason}")
        if state != "cancelled":
            second = self._second(now)
            second.omitted += surplus
            if state == "finished" and now <= deadline:
                second.met += 1
            else:
                second.violated += 1

    def _second(self, now: float) -> Second:
        at = int(now)
        if not self._seconds or self._seconds[-1].at != at:
            self._seconds.append(Second(id=str(at), at=at))
        second = self._seconds[-1]
        if self.watched:
            self._note(second)
        return second

    def _set_state(self, worker_id: str, state: str, now: float, why: str = "") -> None:
        if (worker := self._workers.get(worker_id)) is not None:
            worker.state = state
            self._note(worker)
            self._tell(now, f"{state}{why}", worker_id)

    def _tell(self, now: float, text: str, worker: str = "") -> None:
        self._count += 1
        incident = Incident(id=str(self._count), at=now, text=text, worker=worker)
        self._incidents.append(incident)
        self._note(incident)

    def _note(self, record: PageRecord) -> None:
        if self.watched:
            # A record that changes twice is sent once, in its last state.
            self._changed[id(record)] = record
