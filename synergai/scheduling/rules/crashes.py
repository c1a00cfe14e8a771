"""Variants whose engine host crashed while it computed them: each pauses on that worker.

A crash costs all variants of the host, and the queries that wait for them. Whether the variant or
the query was the cause is not known, since clients choose the queries. So the variant is not used
on that worker for a while, and its queries run in another variant or elsewhere. With each further
crash without a completed query in between, the pause doubles.

The last variant of an engine that a worker has left never pauses.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from synergai.scheduling.events import Pause

if TYPE_CHECKING:
    from synergai.domain import Session, WorkerId
    from synergai.scheduling.events import Command, EnginesChanged
    from synergai.scheduling.rules.worker_changes import WorkerChanges
    from synergai.scheduling.state.fleet import Fleet
    from synergai.scheduling.state.records import Lease, WorkerRecord

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0


class Crashes:
    """Counts crashes of variants, and lets these pause.

    Args:
        fleet: the workers.
        workers: applies the pauses to them.
        commands: output of the event being handled.

    Attributes:
        counts: crashes without a completed query in between, by worker and session.
        pauses: ends of pauses with the worker and the session, a heap.
    """

    def __init__(self, fleet: Fleet, workers: WorkerChanges, commands: list[Command]) -> None:
        self._fleet = fleet
        self._workers = workers
        self._commands = commands
        self.counts: dict[tuple[WorkerId, Session], int] = {}
        self.pauses: list[tuple[float, WorkerId, Session]] = []

    def crashed(self, lease: Lease, now: float) -> WorkerRecord | None:
        """Let the variant of an assignment pause, as it crashed its engine host.

        Returns:
            The worker on which it pauses; None if it does not.
        """
        session = lease.session
        worker = self._fleet.workers.get(lease.assignment.worker_id)
        if worker is None or not worker.has_other_variants(session, paused=False):
            return None
        key = worker.id, session
        count = self.counts[key] = self.counts.get(key, 0) + 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(count - 1, 30), LONGEST_PAUSE_S)
        worker.paused[session] = now + pause_s
        heapq.heappush(self.pauses, (now + pause_s, *key))
        self._workers.update_configurations(worker, session.engine, now)
        self._commands.append(Pause(worker.id, session, pause_s))
        return worker

    def completed(self, lease: Lease) -> None:
        """Forget the crashes of a variant that has completed a query."""
        self.counts.pop((lease.assignment.worker_id, lease.session), None)

    def engines_changed(self, worker: WorkerRecord, change: EnginesChanged) -> None:
        """Forget the crashes of engines that the worker does not have any more, or changed.

        To be called before the change is applied to the worker.
        """
        for key in [key for key in self.counts if key[0] == worker.id]:
            engine = key[1].engine
            if change.variants.get(engine) != worker.variants.get(engine):
                del self.counts[key]

    def remove_worker(self, worker_id: WorkerId) -> None:
        """Forget the crashes on a worker that left."""
        for key in [key for key in self.counts if key[0] == worker_id]:
            del self.counts[key]

    def resume(self, now: float) -> None:
        """Use the variants again whose pause is over."""
        while self.pauses and self.pauses[0][0] <= now:
            until, worker_id, session = heapq.heappop(self.pauses)
            worker = self._fleet.workers.get(worker_id)
            if worker is not None and worker.paused.get(session) == until:
                del worker.paused[session]
                self._workers.update_configurations(worker, session.engine, now)

    def next_due(self) -> float:
        """Return when the next pause ends; there must be one."""
        return self.pauses[0][0]
