"""Deploys engines in stages: observes, plans, and takes the next step towards what is wanted.

What is deployed is in the store of engines: the stages that the gateway has made, and the workers
that they are placed on. Nothing else has to survive. After a crash, or when another gateway takes
over, the controller looks again, and continues with the step that is next. An engine of which
somebody else has pushed or placed a stage is theirs.

The next step for an engine is the first of these that is not done:

1. its stages are in the store,
2. each one is placed on the workers that are to have it,
3. these workers can run it,
4. and have loaded it.

Then queries begin in these stages only. Other ones are removed once nothing runs or
waits in them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final

from gateway.deployment.loading import Loading
from gateway.deployment.observed import (
    StoredEngines,
    StoredStages,
    answering_version,
    placed_on,
    planned_bytes,
    stored_engines,
)
from gateway.deployment.planning import RETRY_S, Candidate
from gateway.deployment.serving import IdleStages, ServingStages
from gateway.deployment.workshop import make_stages
from gateway.hub.store.store import GATEWAY
from synergai.core.routes.deployment import (
    DeploymentState,
    EngineDeployment,
    route_text,
    routes_of,
    stages_of,
)
from synergai.domain import REMOVED, WorkerId
from synergai.errors import SynergaiError
from synergai.names import by_version, is_stage, split_version, stage_name
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Set

    from gateway.deployment.folders import FolderEngines
    from gateway.deployment.planning import Planning
    from gateway.deployment.workshop import Workshop
    from gateway.fleet.versions import Versions
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.placements import Placements
    from gateway.hub.store.storage import StoredVersion
    from gateway.hub.store.store import EngineStore
    from synergai.core.routes.deployment import Stages, WantedEngine
    from synergai.domain import EngineName

LOOK_S: Final = 0.5
"""Interval of the looks, which cost little while no engine needs stages."""

_MOST_CHANGING_S: Final = 60.0
"""Time that a deployment takes at most, as far as others are concerned."""
_CHANGING_S: Final = 5.0
"""Time after the last step in which queries that have waited for it delay others."""

_AT_REST_S: Final = 30.0
"""Time for which the stages of an engine must have been loaded before the engine itself is sent to
workers, which may need it when one of them has left. Inspecting it delays queries."""

_log = logging.getLogger(__name__)


class DeploymentController:
    """Deploys the engines of a store in stages.

    Args:
        workers: those of the fleet at any time.
        load: loads an engine on some of the workers that have it, or without any on all.
        on_closed: called with a worker whose closed stages have changed.
        queued: returns the engines of the queries that wait for a worker.
        with_jobs: returns the engines whose jobs have not all ended.
    """

    def __init__(
        self,
        store: EngineStore,
        planning: Planning,
        placements: Placements,
        workshop: Workshop,
        folders: FolderEngines,
        versions: Versions,
        workers: Mapping[WorkerId, ConnectedWorker],
        load: Callable[[EngineName, Collection[str]], Awaitable[None]],
        on_closed: Callable[[ConnectedWorker], object],
        queued: Callable[[], Set[EngineName]],
        with_jobs: Callable[[], Set[EngineName]],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._planning = planning
        self._workshop = workshop
        self._folders = folders
        self._versions = versions
        self._catalogue = versions.catalogue
        self._workers = workers
        self._with_jobs = with_jobs
        self._clock = clock
        # None if the store has changed since.
        self._stored: StoredEngines | None = None
        self._candidates: Set[EngineName] = frozenset()
        self._wanted: dict[EngineName, WantedEngine] = {}
        # Until when steps may be left, and when there last were, none of which had failed.
        self._changes_until = self._changing_at = -math.inf
        self._plan_fault = ""
        # Why the last step failed, and when it may be tried again.
        self._faults: dict[EngineName, tuple[str, float]] = {}
        # Cuts that have begun, until a look has seen their end.
        self._making: dict[EngineName, asyncio.Task[None]] = {}
        self._tasks = TaskBag()
        self._loading = Loading(workers, load, self._on_loaded)
        self._serving = ServingStages(workers, versions.catalogue, on_closed)
        self._idle = IdleStages(store, workers, queued, clock)
        self._states: dict[EngineName, DeploymentState] = {}
        self._placements = placements
        # Since when an engine has been deployed as it is wanted.
        self._deployed_at: dict[EngineName, float] = {}
        # All engines of the store at the last look, and those that are not sent to workers yet.
        self._looked_at: Set[EngineName] = frozenset()
        self._withheld: Set[EngineName] = frozenset()
        store.follow(self._on_stored_changed)
        self._catalogue.deploys = self._deploys
        placements.withholds = self._withholds

    def _on_stored_changed(self) -> None:
        self._stored = None

    def _now_stored(self) -> StoredEngines:
        if self._stored is None:
            self._stored = stored_engines(self._store)
        return self._stored

    def _deploys(self, engine: EngineName) -> bool:
        """Return whether an engine has stages of the gateway, or will once there is the memory."""
        made, wanted = self._now_stored().stages.get(engine), self._wanted.get(engine)
        if made is not None and made.made:
            return True
        if engine in self._candidates and (wanted is None or wanted.is_possible):
            return True
        stored = self._store.of(engine)
        return (
            stored is not None
            and self._planning.may_cut(stored)
            # Also of workers that have registered, and get no work yet.
            and any(each.too_large for each in self._catalogue.offers_of(engine).values())
        )

    def _withholds(self, engine: EngineName) -> bool:
        """Return whether an engine is not sent to workers yet, so that its stages are sooner there.

        Until the next look, that is each new version of an engine in stages.
        """
        if engine in self._looked_at or is_stage(engine):
            return engine in self._withheld
        answering = answering_version(self._versions, engine)
        made = self._now_stored().stages.get(answering or engine)
        return made is not None and bool(made.made) and not made.has_others

    def _withhold(self, candidates: Set[EngineName], unfinished: Set[EngineName]) -> None:
        """Withhold the engines whose stages are being deployed, or were lately."""
        now = self._clock()
        deployed = self._wanted.keys() & candidates - unfinished
        self._deployed_at = {name: self._deployed_at.get(name, now) for name in deployed}
        names = {stored.name for stored in self._store.versions.values()}
        before = {name for name in names if self._withholds(name)}
        planned = () if self._plan_fault else candidates - self._faults.keys()
        self._withheld = {
            name
            for name in planned
            if now <= self._deployed_at.get(name, now) + _AT_REST_S
            and (name not in self._wanted or self._wanted[name].routes)
        }
        self._looked_at = names
        if before - self._withheld:
            self._placements.apply()

    def deployments(self) -> list[EngineDeployment]:
        """Return the engines that are deployed in stages, or need to be."""
        stored = self._now_stored().stages
        names = {*self._wanted, *(name for name in stored if stored[name].made)}
        found = [self._deployment(name, stored.get(name)) for name in names]
        found += (each for each in self._folders.deployments() if each.engine not in names)
        return sorted(found, key=lambda each: by_version(each.engine))

    def _deployment(self, engine: EngineName, made: StoredStages | None) -> EngineDeployment:
        wanted, (fault, _) = self._wanted.get(engine), self._faults.get(engine, ("", 0.0))
        is_planned = wanted is not None and wanted.is_possible
        routes = wanted.routes if wanted is not None else ()
        is_staged = self._catalogue.is_staged(engine)
        state = self._states.get(engine, "deployed" if is_staged else "planning")
        return EngineDeployment(
            engine=engine,
            state="failed" if fault else state if routes or not is_planned else "whole",
            wanted=routes,
            deployed=routes_of(made.placed) if made is not None else (),
            reason=wanted.reason if wanted is not None and is_planned else "",
            fault=fault,
            predicted_per_s=1 / wanted.interval_s if wanted is not None and is_planned else 0.0,
            queries_per_s=self._planning.times.queries_per_s(engine),
        )

    async def run(self) -> None:
        """Look regularly, until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                await self._try_to_look()
        finally:
            await self._tasks.close()
            await self._folders.close()
            await self._planning.tasks.close()
            await self._workshop.processes.close()
            await self._loading.close()

    async def _try_to_look(self) -> None:
        try:
            await self.look()
        except SynergaiError as error:
            _log.warning("engines are not deployed at the moment: %s", error)
            await asyncio.sleep(RETRY_S)
        except Exception:  # noqa: BLE001 - a bug in one look must not end all others
            _log.exception("cannot deploy engines")
            await asyncio.sleep(RETRY_S)

    async def look(self) -> None:
        """Plan if something has changed, and take the next step for each engine.

        Plans, cuts and loads go on beside the looks, and delay no step of another engine.
        """
        if not self._store.loaded:
            return
        await self._folders.look(self._now_stored().copies)
        stored = self._now_stored()
        stages = stored.stages
        candidates = await self._planning.candidates(stored, self._with_jobs())
        self._candidates = candidates.keys()
        self._plan(candidates, stages)
        surplus: dict[EngineName, StoredVersion] = {}
        for name, made in stages.items():
            if made.has_others or name in candidates:
                continue
            if self._is_left_over(name):
                surplus |= made.without(())
            elif self._serving.loaded(name) is None and self._catalogue.is_staged(name):
                self._serving.set_loaded(name, made.placed)  # another gateway has deployed it
        unfinished: set[EngineName] = set()
        for name, one in candidates.items():
            wanted = self._wanted.get(name)
            if wanted is None or not wanted.is_possible:
                continue
            made = stages.get(name, StoredStages({}, has_others=False))
            self._serving.want(name, stages_of(wanted.routes))
            try:
                if not await self._step(one, wanted, made):
                    unfinished.add(name)
                else:
                    self._serving.set_loaded(name, stages_of(wanted.routes))
                    await self._place(name, stages_of(wanted.routes), made, narrow=True)
            except SynergaiError as error:
                self._fail(name, str(error))
            loaded = self._serving.loaded(name)
            in_use = made.loaded_on(self._workers.values()) if loaded is None else loaded
            surplus |= made.without({*in_use, *stages_of(wanted.routes)})
        self._withhold(candidates.keys(), unfinished)
        unfinished -= self._faults.keys()
        if unfinished and self._clock() < self._changes_until:
            self._changing_at = self._clock()
        else:
            unfinished.clear()
        awaited = set() if self._plan_fault else candidates.keys() - self._wanted.keys()
        awaited |= {name for name in unfinished if self._wanted[name].routes}
        self._catalogue.stages.awaited = awaited
        kept = (n for n in stages if not stages[n].has_others and not self._is_left_over(n))
        self._serving.keep_only(candidates.keys() | set(kept))
        retired = self._serving.apply(self._now_stored().stages)
        self._catalogue.retire(retired | surplus.keys())
        await self._idle.remove(surplus)

    def _plan(
        self,
        candidates: Mapping[EngineName, Candidate],
        stages: Mapping[EngineName, StoredStages],
    ) -> None:
        present = {name: routes_of(made.placed) for name, made in stages.items()}
        present |= {
            name: wanted.routes for name, wanted in self._wanted.items() if wanted.is_possible
        }
        for name in candidates.keys() - present.keys():  # versions of an engine are mostly alike
            answering = answering_version(self._versions, name)
            present |= {name: present[answering]} if answering in present else {}
        is_changing = self._clock() < self._changing_at + _CHANGING_S
        try:
            found = self._planning.plan(candidates, stages, present, is_changing=is_changing)
        except SynergaiError as error:
            if str(error) != self._plan_fault:
                _log.warning("deployed engines stay as they are: %s", error)
            self._plan_fault = str(error)
            return
        if found is not None:
            self._plan_fault = ""
            for wanted in found:
                self._note(wanted)
        for name in self._wanted.keys() - candidates.keys():
            del self._wanted[name]
            self._faults.pop(name, None)
            self._states.pop(name, None)
            self._abandon_cut(name)
            self._loading.forget(name)
            self._serving.abandon(name)

    def _note(self, wanted: WantedEngine) -> None:
        """Keep what a planner wants of an engine, unless that is impossible; log it once."""
        before = self._wanted.get(wanted.name)
        if not wanted.is_possible:
            self._fail(wanted.name, wanted.reason)
            if before is not None:
                return
        elif before is None or before.routes != wanted.routes:
            self._abandon_cut(wanted.name)
            self._changes_until = self._clock() + _MOST_CHANGING_S
            where = " and ".join(map(route_text, wanted.routes)) or "it is to run whole"
            _log.info("engine %s: %s: %s", wanted.name, where, wanted.reason)
        self._wanted[wanted.name] = wanted
        if wanted.is_possible:
            self._faults.pop(wanted.name, None)

    def _fail(self, engine: EngineName, fault: str) -> None:
        before, _ = self._faults.get(engine, ("", 0.0))
        if fault != before:
            _log.warning("engine %s is not deployed in stages: %s", engine, fault)
        self._faults[engine] = fault, self._clock() + RETRY_S
        self._serving.fail(engine)

    def _is_left_over(self, engine: EngineName) -> bool:
        """Return whether nobody needs the stages of an engine that is not to be deployed."""
        if self._store.of(engine) is None:
            return True
        if engine in self._catalogue.unloaded | self._with_jobs() or not self._workers:
            return False
        name, version = split_version(engine)
        policy = self._versions.policy(name)
        if version in (policy.base, policy.target):
            return False
        answering = answering_version(self._versions, engine)
        if answering in (None, engine):
            return False
        wanted = self._wanted.get(answering)
        if wanted is not None and wanted.routes and answering not in self._loading:
            return False
        return self._catalogue.answers(answering)

    async def _step(self, one: Candidate, wanted: WantedEngine, made: StoredStages) -> bool:
        """Take the next step for an engine; return whether all have been taken."""
        name, stages = wanted.name, stages_of(wanted.routes)
        if not stages:
            self._abandon_cut(name)
            self._limit(one)
            if self._catalogue.whole(name) is None:
                await self._place_copy(one)
                return False
            return not made.made or self._is_loaded(name, stages)
        missing = stages.keys() - made.made.keys()
        is_able = not missing and self._can_run(one.stored, stages, made)
        self._states[name] = "cutting" if missing else "loading" if is_able else "placing"
        if not is_able:
            self._loading.forget(name)
            self._serving.restore(name)
        if (making := self._making.get(name)) is not None:
            if making.done():
                del self._making[name]
                making.result()
            return False
        if self._has_to_wait(name) or await self._remove_stale(one.stored, made):
            return False
        if missing:
            placements = {stage: _placement(stages[stage]) for stage in missing}
            make = make_stages(self._workshop, one.stored, wanted.routes, placements)
            self._making[name] = self._tasks.start_awaited(make)
            return False
        if await self._place(name, stages, made) or not is_able:
            return False
        if not self._is_loaded(name, stages):
            return False
        self._states[name] = "deployed"
        self._faults.pop(name, None)
        return True

    def _abandon_cut(self, engine: EngineName) -> None:
        if (making := self._making.pop(engine, None)) is not None:
            making.cancel()

    def _has_to_wait(self, engine: EngineName) -> bool:
        """Return whether a step has failed that may not be tried again yet."""
        _, again_at = self._faults.get(engine, ("", 0.0))
        return self._clock() < again_at

    async def _remove_stale(self, stored: StoredVersion, made: StoredStages) -> bool:
        """Remove the stages of a former model of a version; return whether there were any."""
        stale = [
            each
            for each in made.made.values()
            if (engine := self._catalogue.whole(each.name)) is not None
            and engine.stage_of != stored.model_sha256
        ]
        for each in stale:
            await self._store.remove(each.engine, each.version)
        return bool(stale)

    def _limit(self, one: Candidate) -> None:
        """Plan with less memory of the workers for which a whole engine has proved too large."""
        for worker in one.workers:
            engine = worker.engines.get(one.stored.name)
            if engine is not None and engine.too_large:
                self._planning.limit(worker, planned_bytes(one.stored), is_lasting=True)

    async def _place_copy(self, one: Candidate) -> None:
        """Place an engine of a model directory on the workers that have not tried to hold it."""
        stored, placed = one.stored, placed_on(one.stored)
        untried = {each.id for each in one.workers if stored.name not in each.engines}
        if stored.source and untried:
            placement = _placement(placed | untried)
            await self._store.set_placement(GATEWAY, stored.engine, stored.version, placement)

    async def _place(
        self, engine: EngineName, stages: Stages, made: StoredStages, *, narrow: bool = False
    ) -> bool:
        """Place stages on further workers, or with `narrow` on no others; return if it changes."""
        placed, changed = made.placed, False
        for stage, workers in stages.items():
            wanted = workers if narrow else placed[stage] | workers
            if wanted == placed[stage] or self._store.of(made.made[stage].name) != made.made[stage]:
                continue
            name, version = split_version(stage_name(engine, *stage))
            await self._store.set_placement(GATEWAY, name, int(version), _placement(wanted))
            changed = True
        return changed

    def _can_run(self, stored: StoredVersion, stages: Stages, made: StoredStages) -> bool:
        """Return whether all workers can run their stages."""
        able, faults = True, []
        for stage, ids in stages.items():
            name = stage_name(stored.name, *stage)
            for worker in filter(None, (self._workers.get(WorkerId(each)) for each in ids)):
                engine = worker.engines.get(name)
                if engine is None or engine.fault:
                    able = False
                if engine is not None and engine.fault not in ("", REMOVED) and not engine.pending:
                    faults.append(f"stage {name} on worker {worker.id}: {engine.fault}")
                    failed_bytes = planned_bytes(made.made[stage])
                    self._planning.limit(worker, failed_bytes, is_lasting=engine.too_large)
        if faults:  # the same one at each look, which is logged once
            self._fail(stored.name, min(faults))
        return able

    def _is_loaded(self, engine: EngineName, stages: Stages) -> bool:
        """Return whether stages, or the whole engine, are loaded; otherwise, have that done."""
        if self._loading.has(engine, stages):
            return True
        stored = self._now_stored().stages
        if not self._has_to_wait(engine) and self._serving.make_room(
            engine, stored, is_current=self._planning.is_current
        ):
            self._loading.start(engine, stages)
        return False

    def _on_loaded(self, engine: EngineName, fault: str) -> None:
        if fault:
            self._fail(engine, fault)
        else:
            self._faults.pop(engine, None)


def _placement(workers: Set[str]) -> tuple[str, ...]:
    return tuple(f"worker={worker}" for worker in sorted(workers))
