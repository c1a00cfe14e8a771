"""Sessions that a worker lacked memory for: each pauses on that worker.

Other processes, and other sessions, share the memory of a machine or an accelerator, so a lack of
it passes. In the meantime, queries run in another configuration, such as on the CPU, or on another
worker. With each further failure without a completed query in between, the pause doubles. Where
nothing else is left, the session is used in spite of its pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.domain import Session

if TYPE_CHECKING:
    from synergai.domain import EngineName, WorkerId
    from synergai.scheduling.rules.kernel import State
    from synergai.scheduling.rules.worker_changes import WorkerChanges
    from synergai.scheduling.state.records import Lease, WorkerRecord

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


class Shortages:
    """Lets sessions pause that lack memory."""

    def __init__(self, state: State, workers: WorkerChanges) -> None:
        self._state = state
        self._workers = workers
        state.forget_worker.append(self._forget_worker)
        self.counts: dict[tuple[WorkerId, Session], int] = {}

    def failed(self, lease: Lease) -> None:
        """Let the session of an assignment pause, unless it does already."""
        now, session = self._state.now, lease.session
        worker = self._state.fleet.workers.get(lease.assignment.worker_id)
        if worker is None or session in worker.paused:
            return
        key = worker.id, session
        self.counts[key] = count = self.counts.get(key, 0) + 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(count - 1, 30), LONGEST_PAUSE_S)
        self._workers.pause(worker, session, now + pause_s)

    def completed(self, lease: Lease) -> None:
        """Forget the failures of a session that has completed a query."""
        self.counts.pop((lease.assignment.worker_id, lease.session), None)

    def leaves_nothing_else(self, engine: EngineName) -> bool:
        """Return whether everything pauses in which the engine can run."""
        return all(
            Session(engine, configuration) in worker.paused
            for worker in self._state.serving(engine)
            for configuration in worker.configurations(engine)
        )

    def _forget_worker(self, worker: WorkerRecord) -> None:
        self.counts = {key: each for key, each in self.counts.items() if key[0] != worker.id}
