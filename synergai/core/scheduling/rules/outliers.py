"""Workers that do not answer: ejection, pauses that double, and trials.

A worker may send heartbeats and still hold what it was sent, because its engine host is stopped or
hangs. If its first assignment, or the first of the concurrent ones in a session, shows no sign of
progress for much longer than expected, the worker is ejected: its assignments are revoked and run
elsewhere. After a pause it gets a single assignment on trial, and is readmitted with the first
query that it completes.

A worker may also answer nothing although it reports at once: it ends each assignment as stopped or
failed, or leaves and returns, or computes until the gateway stops it. After a few such assignments
of an engine, or as much time, the engine is ejected from the worker.

A worker is never ejected if another one could not take over its assignments.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from synergai.core.scheduling.events import Eject
from synergai.core.scheduling.state.estimate import Fruitless
from synergai.core.scheduling.state.jobs import Lease, LeasePhase

if TYPE_CHECKING:
    from synergai.core.scheduling.rules.active_jobs import ActiveJobs
    from synergai.core.scheduling.rules.changes import WorkerChanges
    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import EngineName, Fault

FACTOR: Final = 8.0
"""Multiple of the expected time between two signs of progress."""
UNSEEN: Final = 6.0
"""Multiple of the margin for an engine that has not completed a query on the worker."""
LOAD_S: Final = 10.0
"""Least time allowed for loading a session that is not resident, before it is multiplied."""
MOST_ENDS: Final = 3
"""Assignments in a row without an answer that eject an engine. No more than fail a request, so that
the request runs elsewhere instead."""
FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0


class Outliers:
    """Judges workers by their signs of progress; see `WorkerRecord.hear`."""

    def __init__(self, state: State, workers: WorkerChanges, jobs: ActiveJobs) -> None:
        self._state = state
        self._workers = workers
        self._jobs = jobs
        state.forget_worker.append(self._left)

    def check(self) -> None:
        """Eject the workers that make no progress, and readmit those whose pause is over."""
        for worker in list(self._state.fleet.workers.values()):
            self._start_trial(worker)
            if self._is_stuck(worker):
                self._eject(worker)

    def _is_stuck(self, worker: WorkerRecord) -> bool:
        """Return whether the worker has been silent for too long and others can take over."""
        if worker.ejected_until is not None or not self._is_silent(worker):
            return False
        engines = {lease.assignment.engine for lease in worker.all_leases()}
        return all(
            any(
                self._state.estimator.estimates(engine, other)
                for other in self._others(engine, worker)
            )
            for engine in engines
        )

    def _is_silent(self, worker: WorkerRecord) -> bool:
        """Return whether its head, or the first of concurrent requests, is over its limit."""
        now = self._state.now
        firsts = [next(iter(leases.values())) for leases in worker.concurrent.values()]
        silent = any(
            first.head_at is not None and now - first.head_at > self._limit_s(worker, first)
            for first in firsts
        )
        head = worker.head
        if silent or head is None or head.head_at is None:
            return silent
        return now - max(worker.heard_at, head.head_at) > self._limit_s(worker, head)

    def _eject(self, worker: WorkerRecord) -> None:
        """Take all assignments of a worker back, and give it no others for a while."""
        now = self._state.now
        pause_s = _pause_s(worker.ejections)
        worker.ejections += 1
        worker.ejected_until = now + pause_s
        worker.on_trial = False
        self._state.fleet.update_availability(worker, now)
        self._jobs.revoke(worker)
        self._state.commands.append(Eject(worker.id, pause_s))

    # --- engines without answers ----------------------------------------------------------

    def ended(self, worker: WorkerRecord, lease: Lease, fault: Fault) -> bool:
        """Count an assignment without a completed query; return whether its engine is ejected.

        Its failure then says nothing about its job.
        """
        if fault.is_of_query:
            return False
        count = self._count(worker, lease)
        if count.ends < MOST_ENDS and count.seconds <= self._limit_s(worker, lease):
            return False
        return self._eject_engine(worker, lease.assignment.engine)

    def joined(self, worker: WorkerRecord) -> None:
        """Eject the engines of a worker that it made no progress with before it left."""
        for engine, count in worker.observed.fruitless.items():
            count.ejections = 0
            if engine in worker.engines and count.ends >= MOST_ENDS:
                self._eject_engine(worker, engine)

    def _left(self, worker: WorkerRecord) -> None:
        for lease in worker.all_leases():
            if lease.is_head and not lease.done and not lease.stopping:
                self._count(worker, lease)

    def _count(self, worker: WorkerRecord, lease: Lease) -> Fruitless:
        assignment = lease.assignment
        count = worker.observed.fruitless.setdefault(assignment.engine, Fruitless())
        if lease.stopping:
            if lease.head_at is not None:
                count.seconds += self._state.now - lease.head_at
        elif assignment.id > count.covers:
            count.ends += 1
            others = (each.assignment.id for each in worker.all_leases())
            count.covers = max((assignment.id, *others))
        return count

    def _eject_engine(self, worker: WorkerRecord, engine: EngineName) -> bool:
        """Take an engine's assignments on a worker back, and give it no others for a while."""
        if not self._others(engine, worker):
            return False
        count = worker.observed.fruitless[engine]
        pause_s = _pause_s(count.ejections)
        count.ejections += 1
        self._workers.eject_engine(worker, engine, self._state.now + pause_s)
        for lease in worker.all_leases():
            if lease.assignment.engine == engine:
                self._jobs.revoke(worker, lease.session)
        self._state.commands.append(Eject(worker.id, pause_s, engine))
        return True

    # --- silent workers -------------------------------------------------------------------

    def _start_trial(self, worker: WorkerRecord) -> None:
        """Let an ejected worker have one assignment, once its pause is over."""
        now = self._state.now
        if worker.ejected_until is not None and worker.ejected_until <= now:
            worker.ejected_until = None
            worker.on_trial = True
            self._state.fleet.update_availability(worker, now)

    def _limit_s(self, worker: WorkerRecord, lease: Lease) -> float:
        """Return how long the worker may be silent; infinite while an engine is measured."""
        if lease.estimate is None:
            return math.inf
        assignment = lease.assignment
        rows = 1 if assignment.batch_times is None else assignment.batch_times.max_rows
        engine = assignment.engine
        silence_s = worker.silences_s.get(engine, 0.0)
        expected_s = max(rows * assignment.query_s, silence_s)
        if lease.phase is not LeasePhase.RUNNING and not lease.done:
            expected_s += assignment.setup_s
            if lease.session not in worker.sessions:
                expected_s += LOAD_S
        seen = engine in worker.observed.pace
        return FACTOR * expected_s + self._state.settings.stuck_s * (1.0 if seen else UNSEEN)

    def _others(self, engine: EngineName, worker: WorkerRecord) -> list[WorkerRecord]:
        """Return the other workers that an engine's assignments can be given to."""
        return [
            other
            for other in self._state.fleet.serving(engine)
            if other is not worker and not other.withdrawn and not other.on_trial
        ]


def _pause_s(ejections: int) -> float:
    return min(FIRST_PAUSE_S * 2.0 ** min(ejections, 30), LONGEST_PAUSE_S)
