"""Variants whose engine host crashed while it computed them: each pauses on that worker.

A crash costs all variants of the host, and the queries that wait for them. Whether the variant or
the query was the cause is not known, since clients choose the queries. So the variant is not used
on that worker for a while, and its queries run in another variant or elsewhere. With each further
crash without a completed query in between, the pause doubles.

The last variant of an engine that a worker has left never pauses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.scheduling.events import Pause

if TYPE_CHECKING:
    from synergai.domain import Session, Variant, WorkerId
    from synergai.scheduling.rules.active_jobs import ActiveJobs
    from synergai.scheduling.rules.kernel import State
    from synergai.scheduling.rules.worker_changes import WorkerChanges
    from synergai.scheduling.state.records import Lease, WorkerRecord

    Variants = tuple[Variant, ...]

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0


class Crashes:
    """Counts crashes of variants, and lets these pause."""

    def __init__(self, state: State, workers: WorkerChanges, jobs: ActiveJobs) -> None:
        self._state = state
        self._workers = workers
        self._jobs = jobs
        state.forget_worker.append(self._forget_worker)
        self.counts: dict[tuple[WorkerId, Session], tuple[int, Variants]] = {}

    def crashed(self, lease: Lease) -> None:
        """Let the variant of an assignment pause, which crashed its engine host."""
        now, session = self._state.now, lease.session
        worker = self._state.fleet.workers.get(lease.assignment.worker_id)
        if worker is None or not worker.has_other_variants(session, paused=False):
            return
        key, variants = (worker.id, session), worker.variants[session.engine]
        count, before = self.counts.get(key, (0, variants))
        count = count + 1 if before == variants else 1  # another file may not crash
        self.counts[key] = count, variants
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(count - 1, 30), LONGEST_PAUSE_S)
        self._workers.pause(worker, session, now + pause_s)
        self._state.commands.append(Pause(worker.id, session, pause_s))
        self._jobs.revoke(worker, session)

    def completed(self, lease: Lease) -> None:
        """Forget the crashes of a variant that has completed a query."""
        self.counts.pop((lease.assignment.worker_id, lease.session), None)

    def _forget_worker(self, worker: WorkerRecord) -> None:
        self.counts = {key: each for key, each in self.counts.items() if key[0] != worker.id}
