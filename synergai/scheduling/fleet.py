"""The workers: who serves what, and who may be given work now.

A worker becomes available by an event, or when its head assignment is about to end. The
second is an instant known ahead, so that nobody has to look at every worker at every event.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from synergai.scheduling.state import WorkerRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.domain import EngineName, WorkerId
    from synergai.scheduling.events import SchedulingSettings, Worker


class Fleet:
    """All workers, by id, by engine and by availability."""

    def __init__(self, settings: SchedulingSettings) -> None:
        self.workers: dict[WorkerId, WorkerRecord] = {}
        self._settings = settings
        self._serving: dict[EngineName, list[WorkerRecord]] = {}
        self._available: dict[int, WorkerRecord] = {}
        self._agenda: list[tuple[float, int, WorkerRecord]] = []
        self._next_index = 0

    def serving(self, engine: EngineName) -> Sequence[WorkerRecord]:
        """The workers that have `engine`."""
        return self._serving.get(engine, ())

    def join(self, worker: Worker, now: float) -> WorkerRecord:
        """Take a worker in, whose id is not known."""
        record = WorkerRecord(
            worker,
            self._next_index,
            set(worker.engines),
            set(worker.sessions),
            power_mode=worker.power_mode or None,
            idle_since=now,
        )
        self._next_index += 1
        self.workers[worker.id] = record
        for engine in record.engines:
            self._serving.setdefault(engine, []).append(record)
        self.update(record, now)
        return record

    def leave(self, worker: WorkerRecord) -> None:
        """Let a worker go."""
        del self.workers[worker.id]
        for engine in worker.engines:
            self._stop_serving(worker, engine)
        self._available.pop(worker.index, None)
        worker.available_at = math.inf

    def change_engines(self, worker: WorkerRecord, engines: Iterable[EngineName]) -> None:
        """Set what `worker` can run."""
        new = set(engines)
        for engine in worker.engines - new:
            self._stop_serving(worker, engine)
        for engine in new - worker.engines:
            self._serving.setdefault(engine, []).append(worker)
        worker.engines = new

    def _stop_serving(self, worker: WorkerRecord, engine: EngineName) -> None:
        serving = self._serving[engine]
        serving.remove(worker)
        if not serving:
            del self._serving[engine]

    def update(self, worker: WorkerRecord, now: float) -> None:
        """Note that what `worker` has to do is another; it may be available now, or later."""
        at = worker.next_available_at(self._settings)
        if at == worker.available_at:
            return
        worker.available_at = at
        if at <= now:
            self._available[worker.index] = worker
            return
        self._available.pop(worker.index, None)
        if at < math.inf:
            heapq.heappush(self._agenda, (at, worker.index, worker))
            if len(self._agenda) > 4 * len(self.workers) + 16:
                self._agenda = [one for one in self._agenda if one[0] == one[2].available_at]
                heapq.heapify(self._agenda)

    def available(self, now: float) -> list[WorkerRecord]:
        """The workers that may be given work, in the order in which they joined."""
        while self._agenda and self._agenda[0][0] <= now:
            at, index, worker = heapq.heappop(self._agenda)
            if at == worker.available_at:
                self._available[index] = worker
        available = self._available
        if len(available) < 2:
            return list(available.values())
        return [available[index] for index in sorted(available)]

    def next_available_at(self, now: float) -> float:
        """When the next worker becomes available by time alone; infinite if none does."""
        while self._agenda:
            at, _, worker = self._agenda[0]
            if at > now and at == worker.available_at:
                return at
            heapq.heappop(self._agenda)
            if at <= now and at == worker.available_at:
                self._available[worker.index] = worker
        return math.inf

    def soonest(self, count: int, engine: EngineName) -> list[WorkerRecord]:
        """The busy workers with `engine` that become available soonest by time alone."""
        expected = (
            entry
            for entry in self._agenda
            if entry[0] == entry[2].available_at and engine in entry[2].engines
        )
        return [worker for _, _, worker in heapq.nsmallest(count, expected)]
