"""Workers that do not answer: ejection, pauses that double, and trials.

A worker may send heartbeats and still hold what it was sent, because its engine host is stopped or
hangs. If its first assignment, or the first of the concurrent ones in a session, shows no sign of
progress for much longer than expected, the worker is ejected: its assignments are revoked and run
elsewhere. After a pause it gets a single assignment on trial, and is readmitted with the first
query that it completes.

A worker is never ejected if another one could not take over its assignments.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from synergai.scheduling.events import Eject
from synergai.scheduling.state.records import LeasePhase

if TYPE_CHECKING:
    from synergai.domain import EngineName, WorkerId
    from synergai.scheduling.events import ProgressChecked
    from synergai.scheduling.rules.active_jobs import ActiveJobs
    from synergai.scheduling.rules.kernel import State
    from synergai.scheduling.state.records import Lease, WorkerRecord

FACTOR: Final = 8.0
"""Multiple of the expected time between two signs of progress."""
UNSEEN: Final = 6.0
"""Multiple of the margin for an engine that has not completed a query on the worker."""
LOAD_S: Final = 10.0
"""Least time allowed for loading a session that is not resident, before it is multiplied."""
DECAY: Final = 0.9
"""Weight of the longest silence so far, with each further sign of progress."""
FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0


@dataclass(slots=True)
class _Signs:
    """A worker's signs of progress.

    Attributes:
        silences_s: longest recent time between two, by engine.
        ejections: how often it was ejected since it last completed a query.
    """

    heard_at: float = -math.inf
    silences_s: dict[EngineName, float] = field(default_factory=dict)
    ejections: int = 0


class Outliers:
    """Judges workers by their signs of progress."""

    def __init__(self, state: State, jobs: ActiveJobs) -> None:
        self._state = state
        state.forget_worker.append(self._forget_worker)
        self._jobs = jobs
        self._signs: defaultdict[WorkerId, _Signs] = defaultdict(_Signs)

    def _forget_worker(self, worker: WorkerRecord) -> None:
        self._signs.pop(worker.id, None)

    def heard(self, worker: WorkerRecord) -> None:
        """Record a sign of progress on the worker."""
        now, signs = self._state.now, self._signs[worker.id]
        head = worker.head
        if head is not None and head.head_at is not None:
            engine = head.assignment.engine
            silence_s = now - max(signs.heard_at, head.head_at)
            longest_s = DECAY * signs.silences_s.get(engine, 0.0)
            signs.silences_s[engine] = max(silence_s, longest_s)
        signs.heard_at = now

    def completed(self, worker: WorkerRecord) -> None:
        """Record that the worker completed queries; that ends its trial."""
        self._signs[worker.id].ejections = 0
        if worker.on_trial:
            worker.on_trial = False
            self._state.fleet.update_availability(worker, self._state.now)

    def check(self, _event: ProgressChecked) -> None:
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
        return all(self._has_other(engine, worker) for engine in engines)

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
        heard_at = self._signs[worker.id].heard_at
        return now - max(heard_at, head.head_at) > self._limit_s(worker, head)

    def _eject(self, worker: WorkerRecord) -> None:
        """Take all assignments of a worker back, and give it no others for a while."""
        now, signs = self._state.now, self._signs[worker.id]
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(signs.ejections, 30), LONGEST_PAUSE_S)
        signs.ejections += 1
        worker.ejected_until = now + pause_s
        worker.on_trial = False
        self._state.fleet.update_availability(worker, now)
        self._jobs.revoke(worker)
        self._state.commands.append(Eject(worker.id, pause_s))

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
        silence_s = self._signs[worker.id].silences_s.get(engine, 0.0)
        expected_s = max(rows * assignment.query_s, silence_s)
        if lease.phase is not LeasePhase.RUNNING and not lease.done:
            expected_s += assignment.setup_s
            if lease.session not in worker.sessions:
                expected_s += LOAD_S
        seen = engine in worker.observed.pace
        return FACTOR * expected_s + self._state.settings.stuck_s * (1.0 if seen else UNSEEN)

    def _has_other(self, engine: EngineName, worker: WorkerRecord) -> bool:
        return any(
            other is not worker
            and not other.withdrawn
            and not other.on_trial
            and self._state.estimator.estimates(engine, other)
            for other in self._state.fleet.serving(engine)
        )
