"""Why jobs and their stages wait: the history of what was late, refused or interrupted.

A request or job that ends in time leaves no trace but that its worker was busy. Everything is
bounded, and details are recorded of a limited number of requests per second: under overload, when
most are late, the core has no time to say why.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from synergai.core.explanations import Ahead, End, Explanation, Obstacle, Run, Verdict
from synergai.core.scheduling.state.jobs import JobRecord, Lease, Stretch
from synergai.domain import Job, JobId
from synergai.jobs import JobState
from synergai.names import split_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.core.scheduling.view import View

KEPT: Final = 2000
"""Requests and jobs whose explanations are kept once they have ended."""
MAX_REASON: Final = 500
DETAILED_PER_S: Final = 50
SLOW_S: Final = 1.0
"""Time from which on a request or job without a deadline is kept as well."""
_RUNS: Final = 16
"""Assignments that are remembered of each job: the first one and the newest ones."""
_AHEAD: Final = 8
_VERDICTS: Final = 16
_LEFT: Final = 32


class History:
    """Remembers how requests and jobs ended."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept: dict[JobId, tuple[float, Explanation]] = {}
        self._left: deque[tuple[float, WorkerRecord]] = deque(maxlen=_LEFT)
        self._second = -math.inf
        self._detailed = 0
        state.forget_worker.append(self._forget_worker)

    # --- events -------------------------------------------------------------------------

    def released(self, lease: Lease, end: End, detail: str) -> None:
        """Note an assignment of a job that is late, slow, or runs in several."""
        job = lease.job
        if not job.removed:  # otherwise its explanation has it already
            if job.runs is None:
                job.runs = []
            elif len(job.runs) == _RUNS:
                del job.runs[1]
            job.runs.append(_run(lease, end, detail, self._state.now))

    def ended(self, job: JobRecord, state: JobState, reason: str = "") -> None:
        """Record the end of a job; its assignments in flight are in its leases.

        A stage may be in time although its job is late, which is named by its client's id.
        """
        is_stage = bool(job.job.client_id) and not job.is_request
        if state is not JobState.SUCCEEDED or is_stage or self._state.now > _due(job.job):
            self._keep(self._explain(job, state, reason, detailed=self._may_detail()))

    def refused(self, job: JobRecord, reason: str, *, infeasible: bool) -> None:
        """Record a request that was refused on arrival, with its workers if it is infeasible."""
        detailed = self._may_detail()
        if infeasible:
            self._keep(self._explain(job, JobState.REJECTED, reason, detailed=detailed))
        elif detailed:  # a tenant without a quota left would push out all others
            found = self._explain(job, JobState.REJECTED, reason, detailed=False)
            self._keep(replace(found, has_details=True))

    def _forget_worker(self, worker: WorkerRecord) -> None:
        self._left.append((self._state.now, worker))

    def _may_detail(self) -> bool:
        if self._state.now >= self._second + 1.0:
            self._second, self._detailed = self._state.now, 0
        self._detailed += 1
        return self._detailed <= DETAILED_PER_S

    def _keep(self, found: Explanation) -> None:
        self._kept.pop(JobId(found.id), None)  # of a job that was suspended
        self._kept[JobId(found.id)] = self._state.now, found
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    # --- explanations -------------------------------------------------------------------

    @property
    def kept_since(self) -> float:
        """When the oldest of the kept requests and jobs ended; infinite while there is room."""
        return next(iter(self._kept.values()))[0] if len(self._kept) == KEPT else math.inf

    def find(self, name: str) -> Iterator[Explanation]:
        """Yield what ended under an id of the gateway's or a client's, or all; the newest first."""
        for _, found in reversed(self._kept.values()):
            if not name or name in (found.id, found.client_id):
                yield found

    def explain(self, job: JobRecord) -> Explanation:
        """Explain what has become of an active job so far."""
        state = JobState.RUNNING if job.leases else JobState.QUEUED
        return self._explain(job, state, "", detailed=True)

    def _explain(
        self, record: JobRecord, state: JobState, reason: str, *, detailed: bool
    ) -> Explanation:
        now, job = self._state.now, record.job
        in_flight = [_run(lease, "running", "", now) for lease in record.leases.values()]
        runs = tuple(sorted([*(record.runs or ()), *in_flight], key=lambda run: run.given_s))
        total_s = now - job.arrival
        forgotten = len(record.runs or ()) == _RUNS
        waits = list(_waits(runs, total_s, forgotten))
        starves_s = 0.0 if record.starved_since is None else now - record.starved_since
        starved_s = record.starved_s + starves_s
        between_s = runs[1].starved_s - runs[0].starved_s if forgotten else 0.0
        known_s = sum(until - since for since, until in waits)
        waited_s = max(0.0, known_s - (starved_s - between_s))
        ahead: list[Ahead] = []
        verdicts: list[Verdict] = []
        if detailed:
            workers = self._workers(job)
            serving = [worker for worker in workers if job.engine in worker.engines]
            ahead = [
                each for worker in serving for each in self._ahead(worker, job, waits, waited_s)
            ]
            ahead.sort(key=lambda each: -each.seconds)
            waits_on = not state.ended or state is JobState.REJECTED
            verdicts = [
                verdict_from_now(self._state, record, worker)
                if waits_on
                else verdict_so_far(self._state, record, worker, ahead)
                for worker in workers
            ]
            verdicts += self._departures(job)
        return Explanation(
            id=job.id,
            client_id=job.client_id,
            engine=job.engine,
            tenant=job.tenant,
            queries=job.queries,
            state=state.name.lower(),
            reason=reason[:MAX_REASON],
            budget_s=None if job.deadline == math.inf else job.deadline - job.arrival,
            total_s=total_s,
            waited_s=waited_s,
            starved_s=starved_s,
            held_s=0.0 if record.held_until is None else max(0.0, record.held_until - now),
            runs=runs,
            ahead=tuple(ahead[:_AHEAD]),
            workers=tuple(verdicts),
            has_details=detailed,
        )

    def _workers(self, job: Job) -> list[WorkerRecord]:
        """Return the workers to give verdicts on, those first that have the engine."""
        found = list(self._state.serving(job.engine)[:_VERDICTS])
        for worker in self._state.workers.values():
            if len(found) >= _VERDICTS:
                break
            if job.engine not in worker.engines:
                found.append(worker)
        return found

    def _ahead(
        self,
        worker: WorkerRecord,
        job: Job,
        waits: Sequence[tuple[float, float]],
        waited_s: float,
    ) -> Iterator[Ahead]:
        """Yield what a worker computed while a job waited, in part for the stage before it."""
        stretches = list(worker.stretches)
        if (head := worker.head) is not None and head.head_at is not None:
            running, done = head.job, max(1, head.done)
            stretches.append(
                Stretch(running.job, running.is_request, done, head.head_at, self._state.now)
            )
        for stretch in stretches:
            seconds = sum(
                max(
                    0.0,
                    min(job.arrival + until, stretch.until)
                    - max(job.arrival + since, stretch.since),
                )
                for since, until in waits
            )
            seconds = min(seconds, waited_s)
            if seconds <= 0:
                continue
            other = stretch.job
            if other is job and not stretch.is_request:
                continue  # its assignments follow each other, with short gaps
            earlier_s = math.inf if stretch.is_request else job.deadline - other.deadline
            yield Ahead(
                worker=worker.id,
                engine=other.engine,
                job="" if stretch.is_request else other.id,
                tenant=other.tenant,
                # Of the requests in a row, the last may be the one that waited.
                queries=stretch.queries - (stretch.is_request and other is job),
                seconds=seconds,
                earlier_s=earlier_s if math.isfinite(earlier_s) else None,
            )

    def _departures(self, job: Job) -> Iterator[Verdict]:
        """Yield the workers with the engine that left since a job arrived."""
        for at, worker in self._left:
            if at >= job.arrival and job.engine in worker.engines:
                yield Verdict(worker=worker.id, obstacle="left", seconds=at - job.arrival)


def _due(job: Job) -> float:
    return job.deadline if job.deadline < math.inf else job.arrival + SLOW_S


def _run(lease: Lease, end: End, detail: str, now: float) -> Run:
    assignment, arrival = lease.assignment, lease.job.job.arrival
    if end == "stopped" and lease.yielding:
        end = "yielded"
    return Run(
        worker=assignment.worker_id,
        configuration=str(assignment.configuration),
        queries=assignment.count,
        done=lease.done,
        given_s=lease.assigned_at - arrival,
        began_s=None if lease.head_at is None else lease.head_at - arrival,
        ended_s=None if end == "running" else now - arrival,
        end=end,
        setup_s=lease.setup_s or assignment.setup_s,
        switched_to=assignment.configuration.power_mode if lease.switches_mode else "",
        estimated_s=assignment.estimate_s or None,
        detail=detail[:MAX_REASON],
        starved_s=lease.job.starved_s,
    )


def _waits(runs: Sequence[Run], total_s: float, forgotten: bool) -> Iterator[tuple[float, float]]:
    """Yield the intervals in which no worker worked on a job.

    Args:
        forgotten: whether runs behind the first one may be missing.
    """
    until_s = 0.0
    for number, run in enumerate(runs):
        if run.began_s is None:
            continue
        if run.began_s > until_s and not (forgotten and number == 1):
            yield until_s, run.began_s
        until_s = max(until_s, total_s if run.ended_s is None else run.ended_s)
    if total_s > until_s:
        yield until_s, total_s


class _Cost(NamedTuple):
    """What all of a job costs on an idle worker."""

    needed_s: float
    setup_s: float
    estimate: Estimate


def verdict_so_far(
    view: View, record: JobRecord, worker: WorkerRecord, ahead: Sequence[Ahead]
) -> Verdict:
    """Return whether a worker would have been acceptable for a job that has ended."""
    found = _when_idle(view, record, worker)
    if found.obstacle or found.needed_s is None:
        return found
    busy_s = sum(each.seconds for each in ahead if each.worker == worker.id)
    return replace(found, obstacle="busy", seconds=busy_s) if busy_s else found


def verdict_from_now(view: View, record: JobRecord, worker: WorkerRecord) -> Verdict:
    """Return whether a worker is acceptable for a job that waits."""
    found = _when_idle(view, record, worker)
    if found.obstacle or found.needed_s is None:
        return found
    busy_s = worker.free_at(view.now) - view.now
    too_many_s = view.now + busy_s + found.needed_s - record.job.deadline
    if not busy_s or -math.inf < too_many_s <= 0:
        return found
    found = replace(found, obstacle="busy", seconds=busy_s)
    return replace(found, too_many_s=too_many_s) if too_many_s > 0 else found


def _when_idle(view: View, record: JobRecord, worker: WorkerRecord) -> Verdict:
    """Return whether a worker is acceptable without regard to its other work."""
    job, found = record.job, Verdict(worker=worker.id)
    if job.engine not in worker.engines:
        return _without(worker, job, found)
    if worker.draining:
        return replace(found, obstacle="draining")
    if worker.ejected_until is not None:
        return replace(found, obstacle="ejected", seconds=worker.ejected_until - view.now)
    profiled = view.estimator.current(job.engine, worker)
    usable = [each for each in profiled if record.limit is None or record.limit.allows(each)]
    if not usable:
        return replace(found, obstacle="variant" if profiled else "unprofiled")
    costs = [_cost(view, record, worker, each) for each in usable]
    cost = min(costs, key=lambda each: (each.needed_s, each.setup_s))
    budget_s = job.deadline - job.arrival
    found = replace(found, needed_s=cost.needed_s, setup_s=cost.setup_s)
    if cost.needed_s <= budget_s:
        return found
    found = replace(found, too_many_s=cost.needed_s - budget_s)
    paused = [at for session, at in worker.paused.items() if session.engine == job.engine]
    if paused:
        return replace(found, obstacle="paused", seconds=max(paused) - view.now)
    return replace(found, obstacle=_slowness(worker, cost, budget_s))


def _cost(view: View, record: JobRecord, worker: WorkerRecord, estimate: Estimate) -> _Cost:
    setup_s = view.setup_s(record, worker, estimate)
    compute_s = record.job.queries * view.per_query_s(record, worker, estimate)
    return _Cost(setup_s + compute_s, setup_s, estimate)


def _slowness(worker: WorkerRecord, cost: _Cost, budget_s: float) -> Obstacle:
    """Return why an idle worker takes longer than the budget."""
    if cost.needed_s - cost.setup_s > budget_s:
        return "slow"
    mode = cost.estimate.configuration.power_mode
    switches = mode and worker.power_mode not in (None, mode)
    return "mode switch" if switches and cost.estimate.session in worker.sessions else "loading"


def _without(worker: WorkerRecord, job: Job, found: Verdict) -> Verdict:
    """Return the verdict on a worker without the engine, or with other versions of it."""
    name = split_version(job.engine)[0]
    others = sorted(each for each in worker.engines if split_version(each)[0] == name)
    if others:
        return replace(found, obstacle="version", detail=", ".join(others))
    return replace(found, obstacle="engine")
