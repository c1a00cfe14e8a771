"""The stages in which queries run, while others are made, placed and loaded that replace them.

Workers have stages of former, present and wanted plans. If queries began in all of them, a worker
with little memory would load one after the other. So queries run in the stages that were last
loaded, until those that are wanted are loaded as well. Where a worker has not the memory for both,
or the former ones no longer make up the engine, the former ones are closed first: queries wait.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from gateway.deployment.observed import busy_engines, memory_bytes, planned_bytes
from synergai.domain import WorkerId
from synergai.names import engine_of_stage, stage_name, stage_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set

    from gateway.deployment.observed import StoredStages
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.store.storage import StoredVersion
    from gateway.hub.store.store import EngineStore
    from synergai.core.routes.deployment import Stage, Stages
    from synergai.domain import EngineName

GRACE_S: Final = 3.0
"""Time for which nothing may run or wait in a stage that is not wanted until it is removed."""

_log = logging.getLogger(__name__)


class ServingStages:
    """Decides in which stages of engines queries run.

    Args:
        workers: the connected workers, by id.
        on_closed: called with a worker whose closed stages have changed.
    """

    def __init__(
        self,
        workers: Mapping[WorkerId, ConnectedWorker],
        catalogue: Catalogue,
        on_closed: Callable[[ConnectedWorker], object],
    ) -> None:
        self._workers = workers
        self._catalogue = catalogue
        self._on_closed = on_closed
        # By engine: the stages that were last loaded, none if it ran whole; those in which queries
        # run; and those in which they did before, which end there.
        self._loaded: dict[EngineName, Stages] = {}
        self._open: dict[EngineName, Stages] = {}
        self._former: dict[EngineName, Stages] = {}
        self._wanted: dict[EngineName, Stages] = {}
        # Engines whose former stages are closed, so that there is room for those that are wanted.
        self._making_room: set[EngineName] = set()
        # Those whose wanted stages could not be loaded so far.
        self._failed: set[EngineName] = set()

    def loaded(self, engine: EngineName) -> Stages | None:
        """Return the stages of an engine that were last loaded; None if that is not known."""
        return self._loaded.get(engine)

    def keep_only(self, engines: Collection[EngineName]) -> None:
        """Forget all other engines."""
        for engine in (self._loaded.keys() | self._wanted.keys()).difference(engines):
            self.abandon(engine)
            for each in (self._loaded, self._open, self._former):
                each.pop(engine, None)

    def set_loaded(self, engine: EngineName, stages: Stages) -> None:
        """Let queries of an engine run in stages that are loaded."""
        if self._loaded.get(engine) != stages:
            self._former[engine] = self._open.get(engine, {})
        self._loaded[engine] = self._open[engine] = stages
        self.restore(engine)

    def restore(self, engine: EngineName) -> None:
        """Let queries run in the former stages again, after the others could not be loaded."""
        self._making_room.discard(engine)

    def fail(self, engine: EngineName) -> None:
        """Note that the stages that are wanted cannot be loaded at the moment."""
        self.restore(engine)
        self._failed.add(engine)

    def want(self, engine: EngineName, stages: Stages) -> None:
        """Set the stages to load next; queries run in the former ones until then."""
        if self._wanted.get(engine) != stages:
            self.abandon(engine)
        self._wanted[engine] = stages

    def abandon(self, engine: EngineName) -> None:
        """Want no other stages than those that are loaded."""
        self.restore(engine)
        self._wanted.pop(engine, None)
        self._failed.discard(engine)

    def make_room(
        self, engine: EngineName, stored: Mapping[EngineName, StoredStages], *, is_current: bool
    ) -> bool:
        """Return whether the wanted stages may be loaded; if not, once queries have ended.

        Args:
            is_current: nothing has changed since the plan. Otherwise, no query is to wait for it.
        """
        if not self.loaded(engine) or self._fits(engine, stored):
            return True
        if engine not in self._making_room:
            if not is_current:
                return False
            self._making_room.add(engine)
            _log.info(
                "engine %s: queries wait until its new stages are loaded: there is not enough "
                "memory for these and the former ones together",
                engine,
            )
        self.apply(stored)
        ids = {WorkerId(each) for _, each in _pairs(self._wanted[engine])}
        workers = map(self._workers.get, ids)
        return not any(
            worker is not None and worker.closed & busy_engines([worker]) for worker in workers
        )

    def apply(self, stored: Mapping[EngineName, StoredStages]) -> set[EngineName]:
        """Close the stages in which nothing is to run; return those in which no query begins."""
        # A new version, or an engine in its first deployment, is not served in its stages yet.
        new = self._wanted.keys() - self._loaded.keys() - self._failed
        self._catalogue.stages.degraded = any(self._wanted[engine] for engine in new)
        self._catalogue.stages.preferred = {each for each in self._loaded if self._loaded[each]}
        closed: defaultdict[str, set[EngineName]] = defaultdict(set)
        retired: set[EngineName] = set()
        for engine in self._loaded:
            loaded = self._loaded[engine]
            lacks = not all(self._can_run(engine, *pair) for pair in _pairs(loaded))
            if lacks or self._wanted.get(engine, loaded) != loaded:
                self._catalogue.stages.degraded = True
            if engine in self._making_room or not self._answers(engine, loaded):
                self._open[engine] = self._wanted.get(engine, loaded)
                self._former.pop(engine, None)
            else:
                self._open[engine] = loaded
            running, former = self._open[engine], self._former.get(engine, {})
            placed = stored[engine].placed if engine in stored else {}
            ended = _pairs(placed) | set(self._offered(engine))
            for stage, worker in ended - _pairs(running):
                name = stage_name(engine, *stage)
                if stage not in running:
                    retired.add(name)
                if worker not in former.get(stage, ()):
                    closed[worker].add(name)
        for connected in self._workers.values():
            now_closed = frozenset(closed[connected.id])
            if connected.closed != now_closed:
                connected.closed = now_closed
                self._on_closed(connected)
        return retired

    def _offered(self, engine: EngineName) -> Iterator[tuple[Stage, str]]:
        """Yield the stages that workers have, also for a moment after they left the store."""
        for name in self._catalogue.stages.names(engine):
            for worker in self._catalogue.workers_with(name):
                yield stage_positions(name), worker

    def _answers(self, engine: EngineName, stages: Stages) -> bool:
        """Return whether stages make up an engine on the workers that there are."""
        if not stages:
            return self._catalogue.whole(engine) is not None
        reached = {0}
        for stage in sorted(stages):
            first, last = stage
            if first in reached and any(
                self._can_run(engine, stage, each) for each in stages[stage]
            ):
                reached.add(last)
        return max(last for _, last in stages) in reached

    def _can_run(self, engine: EngineName, stage: Stage, worker_id: str) -> bool:
        """Return whether a worker is there that can run a stage."""
        worker = self._workers.get(WorkerId(worker_id))
        name = stage_name(engine, *stage)
        return worker is not None and not worker.draining and name in worker.usable_engines

    def _fits(self, engine: EngineName, stored: Mapping[EngineName, StoredStages]) -> bool:
        """Return whether each worker has the memory for its wanted and its running stages."""
        wanted, now = self._wanted[engine], self._loaded[engine]
        added = {
            (stage, each) for stage in wanted for each in wanted[stage] - now.get(stage, set())
        }
        needed: defaultdict[str, float] = defaultdict(float)
        for name, stages in {**self._open, engine: now}.items():
            for stage, worker in _pairs(stages) | (added if name == engine else set()):
                if name in stored and (version := stored[name].made.get(stage)) is not None:
                    needed[worker] += planned_bytes(version)
        return all(
            worker is None or needed[worker.id] <= (memory_bytes(worker) or math.inf)
            for worker in {self._workers.get(WorkerId(each)) for _, each in added}
        )


class IdleStages:
    """Removes stages that are not wanted from the store, once no query runs or waits in them.

    Args:
        workers: the connected workers, by id.
        queued: returns the engines of the queries that wait for a worker.
    """

    def __init__(
        self,
        store: EngineStore,
        workers: Mapping[WorkerId, ConnectedWorker],
        queued: Callable[[], Set[EngineName]],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._workers = workers
        self._queued = queued
        self._clock = clock
        self._since: dict[EngineName, float] = {}

    async def remove(self, surplus: Mapping[EngineName, StoredVersion]) -> None:
        """Remove the stages among these that have been idle for `GRACE_S`."""
        busy, now = busy_engines(self._workers.values()) | self._queued(), self._clock()
        busy = {name for name in surplus if busy & {name, *_before(name, surplus)}}
        self._since = {name: self._since.get(name, now) for name in surplus if name not in busy}
        for name, since in self._since.items():
            # Somebody may have placed it since the look began.
            if now >= since + GRACE_S and self._store.of(name) == surplus[name]:
                await self._store.remove(surplus[name].engine, surplus[name].version)


def _before(stage: EngineName, stages: Iterable[EngineName]) -> Iterator[EngineName]:
    """Yield the stages from which queries may get to a stage of the same engine."""
    engine, (first, _) = engine_of_stage(stage), stage_positions(stage)
    for each in stages:
        if engine_of_stage(each) == engine and stage_positions(each)[1] <= first:
            yield each


def _pairs(stages: Stages) -> set[tuple[Stage, str]]:
    return {(stage, worker) for stage in stages for worker in stages[stage]}
