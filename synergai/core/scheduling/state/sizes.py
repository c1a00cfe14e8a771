"""Memory of sessions on workers, as reported by agents or else assumed."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergai.core.scheduling.events import Worker
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import Session, WorkerClass, WorkerId

SESSION_BYTES: Final = 512 << 20
"""Assumed size of a session of unknown size."""
VARIANT_BYTES: Final = 64 << 20
"""The same of a variant, which shares the host of others."""
MOST: Final = 10_000
"""Sizes that are remembered of a worker and of a class: of those that were first reported last."""


class SessionSizes:
    """Sizes of sessions, by worker and by worker class."""

    def __init__(self) -> None:
        # The largest that any worker of the class has reported.
        self._by_class: dict[WorkerClass, dict[Session, int]] = {}
        self._workers: Counter[WorkerClass] = Counter()
        # What a worker has reported itself.
        self._by_worker: dict[WorkerId, dict[Session, int]] = {}

    def add_worker(self, worker: Worker) -> None:
        """Add the sizes that a joining worker reports."""
        self._workers[worker.worker_class] += 1
        self._by_worker[worker.id] = {}
        for each in worker.session_sizes:
            self._record(worker, each.session, each.bytes)

    def remove_worker(self, worker: Worker) -> None:
        """Forget the sizes on a worker, and of a class without workers."""
        del self._by_worker[worker.id]
        self._workers[worker.worker_class] -= 1
        if not self._workers[worker.worker_class]:
            del self._workers[worker.worker_class]
            self._by_class.pop(worker.worker_class, None)

    def record(self, worker: WorkerRecord, session: Session, size: int) -> None:
        """Record what loading a session takes on a worker, in bytes; 0 if it is not known."""
        if size:
            self._record(worker.worker, session, size)

    def free(self, worker: WorkerRecord) -> float:
        """Return how many bytes of a worker's memory its sessions leave; infinite if unknown."""
        if not worker.worker.memory_bytes:
            return math.inf
        return worker.worker.memory_bytes - sum(self.of(worker, each) for each in worker.sessions)

    def of(self, worker: WorkerRecord, session: Session) -> int:
        """Return the size of a session: as reported, of its class, or as assumed."""
        known = self._by_worker.get(worker.id, {}).get(session)
        if known is None:
            known = self._by_class.get(worker.worker.worker_class, {}).get(session)
        if known is None:
            known = worker.worker.session_bytes.get(session.engine)
        if known is not None:
            return known
        return VARIANT_BYTES if session.configuration.variant else SESSION_BYTES

    def _record(self, worker: Worker, session: Session, size: int) -> None:
        _remember(self._by_worker[worker.id], session, size)
        sizes = self._by_class.setdefault(worker.worker_class, {})
        _remember(sizes, session, max(size, sizes.get(session, 0)))


def _remember(sizes: dict[Session, int], session: Session, size: int) -> None:
    sizes[session] = size
    if len(sizes) > MOST:
        del sizes[next(iter(sizes))]
