"""Which engines of the store need stages, and what a planner wants of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from gateway.deployment.figures import LINK_CHANGE, SHARE_CHANGE, Cause, Figures
from gateway.deployment.observed import (
    answering_version,
    can_be_cut,
    cutting_of,
    fleet_of,
    memory_bytes,
    wanted_versions,
)
from gateway.deployment.probing import LinkProbes
from gateway.deployment.stage_times import StageTimes
from synergai.core.routes.deployment import (
    EngineOrder,
    PlanOrder,
    WantedEngine,
    query_shares,
    stages_of,
)
from synergai.core.routes.links import GATEWAY
from synergai.errors import SynergaiError
from synergai.names import split_version, stage_name
from synergai.runtime.tasks import TaskBag
from synergai.v1 import common_pb2

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
    from pathlib import Path

    from gateway.deployment.observed import StoredEngines, StoredStages
    from gateway.deployment.workshop import Workshop
    from gateway.fleet.versions import Versions
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.placements import Placements
    from gateway.hub.store.storage import StoredVersion
    from gateway.hub.store.store import EngineStore
    from synergai.core.routes.deployment import Cutting, Objective, StageTime
    from synergai.core.routes.fleet import FleetFile
    from synergai.core.routes.problem import Route
    from synergai.domain import EngineName, WorkerId

    _Ended: TypeAlias = tuple[list[WantedEngine], dict[EngineName, str]]

SETTLE_S: Final = 1.0
"""Time for which engines and workers have to stay as they are until they are planned for."""
RETRY_S: Final = 30.0
"""Time after which a planner that has failed is tried again."""
_MOST_OUTDATED: Final = 3
"""Plans in a row that are made again because engines or workers changed during them, at most."""
_LEAST_QUERIES: Final = 32
"""Queries that tell which engines are asked how often, while stages are loaded."""
_MOST_PLANS: Final = 3
"""Plans in a row, each with the links that the one before it had measured."""
_SMALLER: Final = 0.95
"""Memory that is planned with, of what a stage would take that could not be loaded."""
_CROWDED_S: Final = 60.0
"""Time for which a worker is planned with less memory because other engines had it."""
_SMALLER_BYTES: Final = 25_000_000
"""How much less that is at least: hosts were measured that took so much more than planned."""
_PARTS: Final = (
    "the workers have changed",
    "the engines have changed",
    "the memory for stages has changed",
)
"""What it means that a part of what is planned for has changed."""


class Candidate(NamedTuple):
    """A version of an engine that may be cut, and the workers that may have it.

    Attributes:
        fault: why it cannot be planned; empty if it can.
    """

    stored: StoredVersion
    cutting: Cutting
    workers: Sequence[ConnectedWorker]
    fault: str = ""


class Planning:
    """Plans the engines of a store, again whenever they or the workers have changed.

    Args:
        workers: those of the fleet at any time.
        dictionary: file of the configuration dictionary.
        planner: name of a planner of routes.
        objective: of the plans.

    Attributes:
        times: what queries of stages take.
        plans: number of plans that were computed.
        tasks: the plan that is under way, if there is one.
    """

    def __init__(
        self,
        store: EngineStore,
        placements: Placements,
        versions: Versions,
        workers: Mapping[WorkerId, ConnectedWorker],
        workshop: Workshop,
        dictionary: Path,
        *,
        cutting: Cutting,
        planner: str,
        objective: Objective,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._placements = placements
        self._versions = versions
        self._workers = workers
        self._workshop = workshop
        self._dictionary = dictionary
        self._cutting = cutting
        self._planner = planner
        self._objective = objective
        self._clock = clock
        self._probes = LinkProbes(workers, clock)
        self.times = StageTimes()
        self.plans = 0
        self.tasks = TaskBag()
        self._under_way: asyncio.Task[_Ended] | None = None
        # By digest of a version.
        self._cuttings: dict[str, Cutting] = {}
        # What was last seen and planned for, since when, and until when.
        self._seen: Sequence[object] = ()
        self._seen_at = 0.0
        self._planned: Sequence[object] = ()
        self._again_at = 0.0
        self._outdated = 0
        # Why the last plan was not the first one.
        self._cause: Cause | None = None
        self._figures = Figures(clock)
        self._stages: object = None
        # Memory in which a worker failed to load a stage, until its agent starts again or a time;
        # apart from each other what is lasting, and what is not.
        self._limits: dict[tuple[WorkerId, bool], tuple[str, int, float]] = {}

    def limit(self, worker: ConnectedWorker, failed_bytes: float, *, is_lasting: bool) -> None:
        """Plan with less memory of a worker, on which a stage of this size cannot be loaded.

        Args:
            is_lasting: it alone was too large. Otherwise, other engines had the memory.
        """
        limit = int(min(_SMALLER * failed_bytes, failed_bytes - _SMALLER_BYTES))
        now, key = self._clock(), (worker.id, is_lasting)
        end = math.inf if is_lasting else now + _CROWDED_S
        instance, known, known_end = self._limits.get(key, (worker.instance, limit, end))
        if instance == worker.instance and now < known_end:  # of several, the smallest counts
            limit, end = min((limit, end), (known, known_end))
        self._limits[key] = worker.instance, limit, end

    def _limits_of(self, workers: Mapping[WorkerId, ConnectedWorker]) -> dict[WorkerId, int]:
        """Return the memory of those workers that have turned out to have less than they say."""
        found: dict[WorkerId, int] = {}
        for (name, _), (instance, limit, end) in self._limits.items():
            worker = workers.get(name)
            if worker is None or worker.instance != instance or self._clock() >= end:
                continue
            known = found.get(name, memory_bytes(worker) or math.inf)
            if limit < known:
                found[name] = limit
        return found

    @property
    def is_current(self) -> bool:
        """Whether the last plan has ended, and still fits the engines, workers and memory."""
        return self._under_way is None and self._seen == self._planned

    async def candidates(
        self, engines: StoredEngines, with_jobs: Set[EngineName]
    ) -> dict[EngineName, Candidate]:
        """Return the engines that may need stages, or have some that the gateway has made.

        Jobs keep their version: it counts if it cannot answer them.
        """
        found, catalogue = {}, self._versions.catalogue
        names = (
            name
            for engine, highest in sorted(engines.highest.items())
            for name in wanted_versions(self._versions, engine, highest)
        )
        former = (
            each
            for each in sorted(with_jobs)
            if split_version(each)[0] in engines.highest and not catalogue.answers(each)
        )
        for name in dict.fromkeys((*names, *former)):
            stored, made = self._store.of(name), engines.stages.get(name)
            if stored is None or not can_be_cut(stored) or name in catalogue.unloaded:
                continue
            if made.has_others if made is not None else catalogue.is_staged(name):
                continue  # others have made its stages
            cutting, fault = await self._cutting_of(stored)
            is_whole = catalogue.whole(name) is not None
            if cutting == "never" or (cutting == "needed" and is_whole and made is None):
                continue
            placed = self._placements.candidates(stored)
            workers = [each for each in placed if each.id in self._workers and not each.draining]
            answering = engines.stages.get(answering_version(self._versions, name) or name)
            needs = not is_whole and (
                (answering is not None and bool(answering.made))
                or all(_has_failed(each, stored) for each in workers)
            )
            if workers and (made is not None or cutting == "auto" or needs):
                found[name] = Candidate(stored, cutting, workers, fault)
        return found

    def may_cut(self, stored: StoredVersion) -> bool:
        """Return whether a version may be cut, as far as that has been read."""
        return can_be_cut(stored) and self._cuttings.get(stored.digest, self._cutting) != "never"

    async def _cutting_of(self, stored: StoredVersion) -> tuple[Cutting, str]:
        """Return when a version may be cut, and why that cannot be read."""
        if stored.digest not in self._cuttings:
            try:
                cutting = await cutting_of(self._store, stored, self._cutting)
            except SynergaiError as error:
                return self._cutting, str(error)
            self._cuttings[stored.digest] = cutting
        return self._cuttings[stored.digest], ""

    def _observe(
        self, candidates: Mapping[EngineName, Candidate], workers: Sequence[ConnectedWorker]
    ) -> dict[Cause, float]:
        """Return what was measured of stages, links and loads, by what it is."""
        figures: dict[Cause, float] = {}
        for name in candidates:
            figures |= _time_figures(name, self.times.unplanned(name))
        # Unused links do not matter, and transfers of stages slow down the others.
        is_used = any(map(self.times.of, candidates))
        if is_used and not self._versions.catalogue.stages.degraded:
            figures |= self._speeds(workers)
        return figures | self._shares(candidates)

    def _shares(self, candidates: Collection[EngineName]) -> dict[Cause, float]:
        """Return the share of the queries that are for each engine, if there were any."""
        rates = list(map(self.times.expected_per_s, candidates))
        if len(rates) < 2 or not any(rates):
            return {}
        shares = query_shares(rates)
        return {
            Cause("the share of the queries that are for", name, factor=SHARE_CHANGE): share
            for name, share in zip(candidates, shares, strict=True)
        }

    def _speeds(self, workers: Sequence[ConnectedWorker]) -> dict[Cause, float]:
        """Return the speeds of the links that are known."""
        hosts = {GATEWAY, *(worker.id for worker in workers)}
        return {
            Cause(
                f"the speed of the link from {source} to {target}", factor=LINK_CHANGE
            ): link.bytes_per_s
            for (source, target), link in self._probes.known().items()
            if {source, target} <= hosts
        }

    def plan(
        self,
        candidates: Mapping[EngineName, Candidate],
        stages: Mapping[EngineName, StoredStages],
        present: Mapping[EngineName, tuple[Route, ...]],
        *,
        is_changing: bool = False,
    ) -> list[WantedEngine] | None:
        """Return what a plan that has ended wants of some engines; None if there is none.

        If something has changed, but not just so, another one begins, of which a later call tells.
        An engine that cannot be read is not possible, for now.

        Args:
            present: routes of engines that stay as they are unless others save enough.
            is_changing: the last plan is still being carried out. Changes of what was measured
                do not stop it, except that the shares of the queries become known.

        Raises:
            PlanFailed: the planner has failed.
        """
        workers = {each.id: each for one in candidates.values() for each in one.workers}
        limits = self._limits_of(workers)
        engines = candidates.keys() | stages.keys()
        now = self._clock()
        asked = self._versions.catalogue.stages.asked
        self.times.observe(self._workers.values(), engines, now, asked, is_changing=is_changing)
        observed = figures = self._observe(candidates, list(workers.values()))
        seen = (
            [(each.id, each.worker_class, memory_bytes(each)) for each in workers.values()],
            [(*one[:2], [w.id for w in one.workers], one.fault) for one in candidates.values()],
            limits,
        )
        if is_changing:
            # What is asked does not depend on it, once there were enough queries.
            is_known = sum(map(self.times.expected, candidates)) >= _LEAST_QUERIES
            shares = self._shares(candidates) if is_known else {}
            figures = {what: shares[what] for what in shares if what not in self._figures}
        is_due, cause = self._is_due(seen, figures)
        if (ended := self._under_way) is not None:
            if not ended.done():
                return None
            self._under_way = None
            self._outdated = self._outdated + 1 if seen != self._planned else 0
            if ended.exception() or self._outdated in (0, _MOST_OUTDATED):
                self._outdated = 0
                return self._end(ended)
            self._again_at = self._clock()  # even if all is as it was by the next look
        if is_due:
            self._planned, self._cause = seen, cause
            self._figures.set_planned(observed)
            work = self._plan(candidates, present, list(workers.values()), limits)
            self._under_way = self.tasks.start_awaited(work)
        return None

    async def _plan(
        self,
        candidates: Mapping[EngineName, Candidate],
        present: Mapping[EngineName, tuple[Route, ...]],
        workers: Sequence[ConnectedWorker],
        limits: Mapping[WorkerId, int],
    ) -> _Ended:
        """Return what is wanted of the engines that can be read, and why others cannot."""
        await self._workshop.tidy(candidates.keys())
        faults = await self._bring(candidates)
        brought = {name: one for name, one in candidates.items() if name not in faults}
        if not brought:
            return [], faults
        found: list[WantedEngine] = []
        for _ in range(_MOST_PLANS):
            order = self._order(brought, present, fleet_of(workers, self._probes.known(), limits))
            found = await self._workshop.processes.plan(order)
            self.plans += 1
            # An engine that has lost workers is not to wait for that.
            is_urgent = self._versions.catalogue.stages.degraded
            if is_urgent or not await self._probes.measure(found):
                break
        self._figures.add_planned(self._speeds(workers))
        return [self._with_unknown_links(each) for each in found], faults

    def _with_unknown_links(self, wanted: WantedEngine) -> WantedEngine:
        """Return what is wanted with the links that were not measured in its reason."""
        links = ", ".join(" to ".join(pair) for pair in self._probes.unknown([wanted]))
        if not links:
            return wanted
        return replace(wanted, reason=f"{wanted.reason}; links not measured: {links}")

    def _end(self, task: asyncio.Task[_Ended]) -> list[WantedEngine]:
        """Return what a plan that has ended wants; it is made again if not all could be read."""
        self._again_at = self._clock() + RETRY_S
        found, faults = task.result()
        if not faults:
            self._again_at = math.inf
        impossible = (
            WantedEngine(name=name, reason=fault, is_possible=False)
            for name, fault in faults.items()
        )
        if (cause := self._cause) is not None:
            found = [
                replace(each, reason=f"{each.reason}; planned again: {cause.told_of(each.name)}")
                for each in found
            ]
        for wanted in found:
            self.times.set_planned(wanted.name, wanted.times, is_whole=not wanted.routes)
            times = _time_figures(wanted.name, wanted.times)
            self._figures.add_planned({w: s for w, s in times.items() if w not in self._figures})
        found += impossible
        stages = {wanted.name: stages_of(wanted.routes) for wanted in found}
        is_alike, self._stages = stages == self._stages, stages
        if cause is not None:
            self._figures.pause(cause, is_alike=is_alike)
        return found

    async def _bring(self, candidates: Mapping[EngineName, Candidate]) -> dict[EngineName, str]:
        """Copy engines to the workshop; return why some cannot be planned."""
        faults = {name: one.fault for name, one in candidates.items() if one.fault}
        for name, one in candidates.items():
            if not one.fault:
                try:
                    await self._workshop.bring(one.stored)
                except SynergaiError as error:
                    faults[name] = str(error)
        return faults

    def _is_due(
        self, seen: Sequence[object], figures: Mapping[Cause, float]
    ) -> tuple[bool, Cause | None]:
        """Return whether there is something to plan for, which has not just changed, and what."""
        now = self._clock()
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        if now < self._seen_at + SETTLE_S:
            return False, None
        if seen != self._planned:
            parts = zip(_PARTS, seen, self._planned, strict=False)  # at first, there are none
            return True, next((Cause(what) for what, new, old in parts if new != old), None)
        change = self._figures.change(figures)
        return change is not None or now >= self._again_at, change

    def _order(
        self,
        candidates: Mapping[EngineName, Candidate],
        present: Mapping[EngineName, tuple[Route, ...]],
        fleet: FleetFile,
    ) -> PlanOrder:
        engines = (
            EngineOrder(
                name=name,
                workers=tuple(each.id for each in one.workers),
                present=present.get(name, ()),
                cutting=one.cutting,
                observed=self.times.of(name),
                queries_per_s=self.times.expected_per_s(name),
            )
            for name, one in candidates.items()
        )
        return PlanOrder(
            models=str(self._workshop.models),
            dictionary=str(self._dictionary),
            fleet=fleet,
            engines=tuple(engines),
            planner=self._planner,
            objective=self._objective,
        )


def _time_figures(engine: EngineName, times: Iterable[StageTime]) -> dict[Cause, float]:
    return {
        Cause("the time of", stage_name(engine, each.first, each.last), f"on {each.worker}"): (
            each.seconds
        )
        for each in times
    }


def _has_failed(worker: ConnectedWorker, stored: StoredVersion) -> bool:
    """Return whether a worker cannot run a version that it has, nor is about to try."""
    placed = worker.placed.get((stored.engine, stored.version))
    if placed is not None and placed.state == common_pb2.PLACED_STATE_FAILED:
        return True
    engine = worker.engines.get(stored.name)
    if engine is None:
        return placed is None and bool(stored.source)
    return bool(engine.fault) and not engine.pending
