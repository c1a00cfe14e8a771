"""Workers that do not answer: ejection, pauses that double, and trials.

A worker may send heartbeats and still hold what it was sent, because its engine host is stopped or
hangs. If its first assignment shows no sign of progress for much longer than expected, the worker
is ejected: its assignments are revoked and run elsewhere. After a pause it gets a single assignment
on trial, and is readmitted with the first query that it completes.

A worker is never ejected if another one could not take over its assignments.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from synergai.scheduling.state.records import Phase

if TYPE_CHECKING:
    from synergai.domain import EngineName
    from synergai.scheduling.settings import SchedulingSettings
    from synergai.scheduling.state.estimator import Estimator
    from synergai.scheduling.state.fleet import Fleet
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


class Outliers:
    """Judges workers by their signs of progress."""

    def __init__(self, fleet: Fleet, estimator: Estimator, settings: SchedulingSettings) -> None:
        self._fleet = fleet
        self._estimator = estimator
        self._margin_s = settings.stuck_s

    def heard(self, worker: WorkerRecord, now: float) -> None:
        """Record a sign of progress on the worker."""
        head = worker.head
        if head is not None and head.head_at is not None:
            engine = head.assignment.engine
            silence_s = now - max(worker.heard_at, head.head_at)
            longest_s = DECAY * worker.silences_s.get(engine, 0.0)
            worker.silences_s[engine] = max(silence_s, longest_s)
        worker.heard_at = now

    def completed(self, worker: WorkerRecord, now: float) -> None:
        """Record that the worker completed queries; that ends its trial."""
        worker.ejections = 0
        if worker.on_trial:
            worker.on_trial = False
            self._fleet.update_availability(worker, now)

    def is_stuck(self, worker: WorkerRecord, now: float) -> bool:
        """Return whether the worker has been silent for too long and others can take over."""
        head = worker.head
        if head is None or head.head_at is None or worker.ejected_until is not None:
            return False
        silent_s = now - max(worker.heard_at, head.head_at)
        return silent_s > self._limit_s(worker, head) and all(
            self._has_other(engine, worker)
            for engine in {lease.assignment.engine for lease in worker.all_leases()}
        )

    def eject(self, worker: WorkerRecord, now: float) -> float:
        """Withdraw the worker; return for how many seconds."""
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(worker.ejections, 30), LONGEST_PAUSE_S)
        worker.ejections += 1
        worker.ejected_until = now + pause_s
        worker.on_trial = False
        self._fleet.update_availability(worker, now)
        return pause_s

    def start_trial(self, worker: WorkerRecord, now: float) -> None:
        """Let an ejected worker have one assignment, once its pause is over."""
        if worker.ejected_until is not None and worker.ejected_until <= now:
            worker.ejected_until = None
            worker.on_trial = True
            self._fleet.update_availability(worker, now)

    def _limit_s(self, worker: WorkerRecord, lease: Lease) -> float:
        """Return how long the worker may be silent; infinite while an engine is measured."""
        if lease.estimate is None:
            return math.inf
        assignment = lease.assignment
        rows = 1 if assignment.batch_times is None else assignment.batch_times.max_rows
        engine = assignment.engine
        expected_s = max(rows * assignment.query_s, worker.silences_s.get(engine, 0.0))
        if lease.phase is not Phase.RUNNING and not lease.done:
            expected_s += assignment.setup_s
            if lease.session not in worker.sessions:
                expected_s += LOAD_S
        seen = (worker.id, engine) in self._estimator.paces
        return FACTOR * expected_s + self._margin_s * (1.0 if seen else UNSEEN)

    def _has_other(self, engine: EngineName, worker: WorkerRecord) -> bool:
        return any(
            other is not worker
            and not other.withdrawn
            and not other.on_trial
            and self._estimator.estimates(engine, other)
            for other in self._fleet.serving(engine)
        )
