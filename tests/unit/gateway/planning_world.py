"""A store, workers and a planner, for tests of when plans are made."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from gateway.deployment.observed import stored_engines
from gateway.deployment.planning import Planning
from gateway.deployment.planning_process import PlanFailed
from gateway.deployment.workshop import Workshop
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.versions import Versions
from gateway.fleet.worker import ConnectedWorker
from gateway.hub.placements import Placements
from gateway.hub.store.storage import StoredVersion
from gateway.hub.store.store import EngineStore
from synergai.core.routes.deployment import PlanOrder, StageTime, WantedEngine
from synergai.core.routes.problem import Route
from synergai.domain import EngineName, WorkerId
from synergai.errors import NotFound, Overloaded
from tests.clocks import FakeClock
from tests.unit.gateway.conftest import make_worker
from tests.unit.gateway.deployment_world import NET, stored
from tests.unit.gateway.test_stages import stage

WHOLE = replace(stage(0, 9), name=NET, stage_of="", stage_end=0)


class World:
    """A store, two workers that have failed to load its engine, and a planner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock(1000.0)
        self.versions: dict[tuple[str, int], StoredVersion] = {}
        self.put(stored(NET, pushed_by="me"))
        self.workers = {WorkerId(name): make_worker(name) for name in ("a", "b")}
        self.catalogue = Catalogue()
        self.orders: list[PlanOrder] = []
        self.fault = ""
        self.unreadable: set[str] = set()
        self.found: list[WantedEngine] = []
        self.routes: tuple[Route, ...] = ()
        self.times: tuple[StageTime, ...] = ()
        self.with_jobs: set[EngineName] = set()
        for worker in self.workers.values():
            worker.memory_limit_bytes = 240_000_000
            worker.engines = {NET: replace(WHOLE, fault="it is too large")}
        self.workshop = SimpleNamespace(
            bring=self.bring,
            tidy=self.nothing,
            models=Path(),
            turn=asyncio.Lock(),
            processes=SimpleNamespace(plan=self.answer),
        )
        self.monkeypatch = monkeypatch
        self.resolved = Versions(self.catalogue)
        self.planning = Planning(
            cast("EngineStore", self),
            cast("Placements", self),
            self.resolved,
            self.workers,
            cast("Workshop", self.workshop),
            Path("dictionary.db"),
            cutting="needed",
            planner="optimal",
            objective="throughput",
            clock=self.clock,
        )

    async def nothing(self, *_: object) -> None:
        pass

    async def bring(self, version: StoredVersion) -> None:
        if version.engine in self.unreadable:
            raise Overloaded("there is no room for it")

    async def read(self, sha256: str, _offset: int, _size: int) -> bytes:
        if sha256 in self.unreadable:
            raise NotFound("the store has no content")
        return b'routes = "auto"'

    async def answer(self, order: PlanOrder) -> list[WantedEngine]:
        self.orders.append(order)
        if self.fault:
            raise PlanFailed(self.fault)
        return [
            WantedEngine(name=engine.name, routes=self.routes, reason="as asked", times=self.times)
            for engine in order.engines
        ]

    def put(self, version: StoredVersion) -> None:
        self.versions[version.engine, version.version] = version

    def of(self, engine: EngineName) -> StoredVersion | None:
        name, _, version = engine.partition("/")
        return self.versions.get((name, int(version or 1)))

    def candidates(self, _version: StoredVersion) -> list[ConnectedWorker]:
        return list(self.workers.values())

    async def names(self) -> list[str]:
        engines = stored_engines(cast("EngineStore", self))
        return list(await self.planning.candidates(engines, self.with_jobs))

    async def look(self, times: int = 1, pause_s: float = 0.5, *, is_changing: bool = False) -> int:
        """Look some times; return the number of plans so far."""
        engines = stored_engines(cast("EngineStore", self))
        for _ in range(times):
            candidates = await self.planning.candidates(engines, self.with_jobs)
            found = self.planning.plan(candidates, engines.stages, {}, is_changing=is_changing)
            self.found = found or self.found
            await self.planning.tasks.wait()
            self.clock.now += pause_s
        return len(self.orders)

    def add(self, name: str) -> None:
        """Push another engine that no worker can load."""
        self.put(replace(stored(name, pushed_by="me"), digest=name))
        for worker in self.workers.values():
            engine = replace(WHOLE, name=EngineName(name), fault="it is too large")
            worker.engines[engine.name] = engine
