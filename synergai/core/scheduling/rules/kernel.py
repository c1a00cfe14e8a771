"""The kernel: what all rules share."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from synergai.core.scheduling.policy import View
from synergai.core.scheduling.registry import POLICIES
from synergai.core.scheduling.rules.wait_queue import WaitQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.core.scheduling.events import Command, Worker
    from synergai.core.scheduling.policy import Policy
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import Session, WorkerClass, WorkerId
    from synergai.profiles.dictionary import ConfigurationDictionary


SESSION_BYTES: Final = 512 << 20
"""Assumed size of a session of unknown size."""
VARIANT_BYTES: Final = 64 << 20
"""The same of a variant, which shares the host of others."""
MAX_REMEMBERED: Final = 10_000
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
    if len(sizes) > MAX_REMEMBERED:
        del sizes[next(iter(sizes))]


class State(View):
    """What policies see, and what only rules change. Every rule receives it.

    Attributes:
        timers: heap of instants, with what is to be called then, before decisions; see `call_at`.
        forget_worker: called with a worker that has left.
        forget_job: called with a job that has left the system. Of single requests, rules keep
            nothing.
    """

    def __init__(self, settings: SchedulingSettings, dictionary: ConfigurationDictionary) -> None:
        super().__init__(settings, dictionary)
        self.dictionary = dictionary
        self.policy: Policy = POLICIES.create(settings.policy, settings.policy_options)
        self.waiting = WaitQueue(self, self.policy)
        self.sizes = SessionSizes()
        self.commands: list[Command] = []
        self.timers: list[tuple[float, int, Callable[[], None], JobRecord | None]] = []
        self._timed = 0
        self._most_timers = 64
        self.forget_worker: list[Callable[[WorkerRecord], None]] = []
        self.forget_job: list[Callable[[JobRecord], None]] = []

    def call_at(self, at: float, call: Callable[[], None], job: JobRecord | None = None) -> None:
        """Call a rule back at an instant, unless `job` has left the system."""
        self._timed += 1
        heapq.heappush(self.timers, (at, self._timed, call, job))
        if len(self.timers) > self._most_timers:
            # Most requests end long before their deadline.
            self.timers = [
                timer for timer in self.timers if timer[3] is None or not timer[3].removed
            ]
            heapq.heapify(self.timers)
            self._most_timers = 2 * len(self.timers) + 64

    def call_timers(self) -> None:
        """Call what is due."""
        while self.next_timer() <= self.now:
            heapq.heappop(self.timers)[2]()

    def next_timer(self) -> float:
        """Return when a rule is called back next; infinite if none is."""
        timers = self.timers
        while timers and (job := timers[0][3]) is not None and job.removed:
            heapq.heappop(timers)
        return timers[0][0] if timers else math.inf
