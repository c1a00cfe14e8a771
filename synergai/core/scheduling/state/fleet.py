"""The fleet: which workers serve an engine, and which are available.

A worker becomes available on an event, or at a known instant shortly before its head
assignment ends. A heap of these instants avoids scanning all workers on every event.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergai.core.scheduling.state.estimate import Observed
from synergai.core.scheduling.state.workers import WorkerRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.core.scheduling.events import Worker
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.domain import EngineName, WorkerId

_MAX_ABSENT: Final = 256
"""Absent workers whose observed times are kept, in case they return."""


class Fleet:
    """All workers, by id, by engine and by availability.

    Attributes:
        interruptible: the workers on which a request can interrupt a job, by order of joining.
        shared: the busy workers that may run a request concurrently with other work.
    """

    def __init__(self, settings: SchedulingSettings) -> None:
        self.workers: dict[WorkerId, WorkerRecord] = {}
        self._settings = settings
        self._serving: dict[EngineName, list[WorkerRecord]] = {}
        self.interruptible: dict[int, WorkerRecord] = {}
        self.shared: dict[int, WorkerRecord] = {}
        self._available: dict[int, WorkerRecord] = {}
        self._upcoming: list[tuple[float, int, WorkerRecord]] = []
        self._next_index = 0
        # In the order in which the workers left.
        self._absent: dict[WorkerId, Observed] = {}

    def serving(self, engine: EngineName) -> Sequence[WorkerRecord]:
        """Return the workers that have `engine`."""
        return self._serving.get(engine, ())

    @property
    def engines(self) -> Iterable[EngineName]:
        """The engines that any worker has."""
        return self._serving.keys()

    def add(self, worker: Worker, now: float) -> WorkerRecord:
        """Add a worker whose id is not in the fleet."""
        if self._settings.strict:
            worker = replace(worker, cores=0)
        record = WorkerRecord(
            worker,
            self._next_index,
            set(),
            set(worker.sessions),
            unusable=set(worker.unusable),
            variants=dict(worker.variants),
            file_variants=dict(worker.file_variants),
            query_s=dict(worker.query_s),
            power_mode=worker.power_mode or None,
            observed=self._absent.pop(worker.id, Observed()),
            prefetch_s=self._settings.prefetch_s,
            idle_since=now,
        )
        self._next_index += 1
        if worker.machine:
            for other in self.workers.values():
                if other.worker.machine == worker.machine:
                    record.mates[other.index], other.mates[record.index] = other, record
        self.workers[worker.id] = record
        self.set_engines(record, worker.engines)
        self.update_availability(record, now)
        return record

    def remove(self, worker: WorkerRecord) -> None:
        """Remove a worker; if it returns soon, its paces are still known."""
        del self.workers[worker.id]
        for mate in worker.mates.values():
            del mate.mates[worker.index]
        self._absent[worker.id] = worker.observed
        if len(self._absent) > _MAX_ABSENT:
            del self._absent[next(iter(self._absent))]
        for engine in worker.engines:
            self._remove_engine(worker, engine)
        self._available.pop(worker.index, None)
        self.interruptible.pop(worker.index, None)
        self.shared.pop(worker.index, None)
        worker.available_at = math.inf

    def void_absent_paces(self, engine: EngineName) -> None:
        """Forget the paces of an engine on absent workers, as a profile of it is replaced."""
        for observed in self._absent.values():
            observed.void_pace(engine)

    def set_engines(self, worker: WorkerRecord, engines: Iterable[EngineName]) -> None:
        """Replace the set of engines of `worker`, without those that it can run in no way."""
        new = {engine for engine in engines if worker.configurations(engine)}
        for engine in worker.engines - new:
            self._remove_engine(worker, engine)
        for engine in new - worker.engines:
            self._serving.setdefault(engine, []).append(worker)
        worker.engines = new

    def _remove_engine(self, worker: WorkerRecord, engine: EngineName) -> None:
        serving = self._serving[engine]
        serving.remove(worker)
        if not serving:
            del self._serving[engine]

    def update_availability(self, worker: WorkerRecord, now: float) -> None:
        """Recompute when `worker` becomes available, after its work has changed."""
        index, takes_more = worker.index, worker.takes_more
        if takes_more and worker.is_interruptible:
            self.interruptible[index] = worker
        elif index in self.interruptible:
            del self.interruptible[index]
        if takes_more and worker.worker.cores:
            self.shared[index] = worker
        elif index in self.shared:
            del self.shared[index]
        at = worker.next_available_at(self._settings)
        if at == worker.available_at:
            return
        worker.available_at = at
        if at <= now:
            self._available[index] = worker
            return
        self._available.pop(index, None)
        if at < math.inf:
            heapq.heappush(self._upcoming, (at, index, worker))
            if len(self._upcoming) > 4 * len(self.workers) + 16:
                self._upcoming = [one for one in self._upcoming if one[0] == one[2].available_at]
                heapq.heapify(self._upcoming)

    def available(self, now: float) -> list[WorkerRecord]:
        """Return the workers that accept an assignment now, in order of joining."""
        while self._upcoming and self._upcoming[0][0] <= now:
            at, index, worker = heapq.heappop(self._upcoming)
            if at == worker.available_at:
                self._available[index] = worker
        available = list(self._available.values())
        if len(available) > 1:
            available.sort(key=_index)
        return available

    def next_available_at(self, now: float) -> float:
        """Return when the next worker becomes available by time alone; infinite if none does."""
        while self._upcoming:
            at, _, worker = self._upcoming[0]
            if at > now and at == worker.available_at:
                return at
            heapq.heappop(self._upcoming)
            if at <= now and at == worker.available_at:
                self._available[worker.index] = worker
        return math.inf

    def next_available(self, count: int, engine: EngineName) -> list[WorkerRecord]:
        """Return the `count` busy workers with `engine` that become available soonest by time."""
        expected = (
            entry
            for entry in self._upcoming
            if entry[0] == entry[2].available_at and engine in entry[2].engines
        )
        return [worker for _, _, worker in heapq.nsmallest(count, expected)]


def _index(worker: WorkerRecord) -> int:
    return worker.index
