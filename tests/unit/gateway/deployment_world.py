"""A store, workers and a planner, for tests of how engines are deployed in stages."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

from msgspec.structs import replace

from gateway.deployment.controller import DeploymentController
from gateway.deployment.folders import FolderEngines
from gateway.deployment.observed import StoredEngines, StoredStages
from gateway.deployment.planning import Candidate, Planning
from gateway.deployment.stage_times import StageTimes
from gateway.deployment.workshop import Workshop
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.versions import Versions
from gateway.fleet.worker import ConnectedWorker
from gateway.hub.placements import Placements
from gateway.hub.store.storage import StoredVersion
from gateway.hub.store.store import GATEWAY, EngineStore
from synergai.core.routes.deployment import WantedEngine
from synergai.core.routes.problem import Leg, Route
from synergai.domain import Configuration, Engine, EngineName, Session, WorkerId
from synergai.errors import EngineUnusable, SynergaiError
from synergai.models.manifest import Manifest, ManifestFile
from synergai.names import is_stage, split_version, stage_positions
from tests.clocks import FakeClock
from tests.unit.gateway.conftest import make_worker
from tests.unit.gateway.test_stages import stage
from tests.waiting import turns, until

NET = EngineName("net")
MODEL = "a" * 64
WHOLE = replace(
    stage(0, 9), name=NET, backend="onnxruntime", stage_of="", stage_end=0, digest=MODEL
)
TOO_LARGE = replace(WHOLE, fault="it is too large", too_large=True)


def stored(
    name: str, placement: Sequence[str] = (), pushed_by: str = GATEWAY.name
) -> StoredVersion:
    sha256 = "b" * 64 if is_stage(name) else MODEL
    engine, version = split_version(name)
    return StoredVersion(
        engine=engine,
        version=int(version),
        digest=sha256,
        manifest=Manifest(
            backend="onnxruntime",
            model="model.onnx",
            files=(ManifestFile("model.onnx", sha256, 1000),),
        ),
        placement=tuple(placement),
        pushed_at="",
        pushed_by=pushed_by,
    )


def wanted(*routes: Sequence[tuple[str, int, int]], **others: object) -> WantedEngine:
    return WantedEngine(
        name=NET,
        routes=tuple(Route(tuple(Leg(*leg) for leg in route)) for route in routes),
        reason="of the test",
        interval_s=1.0,
        **others,  # type: ignore[arg-type]
    )


class World:
    """A store whose versions appear on the workers that they are placed on, and a planner."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loaded = True
        self.versions: dict[tuple[str, int], StoredVersion] = {}
        self.followers: list[Callable[[], object]] = []
        self.catalogue = Catalogue(model=self.model_of)
        self.workers = {WorkerId(name): make_worker(name) for name in ("a", "b", "c")}
        for worker in self.workers.values():
            worker.engines = {}
        self.plans: list[WantedEngine] = []
        self.faults: dict[str, str] = {}
        self.limits: dict[str, bool] = {}
        self.cuts: list[tuple[int, ...]] = []
        self.copied: list[tuple[str, EngineName]] = []
        self.turn = asyncio.Lock()
        self.loads: list[str] = []
        self.queued: set[EngineName] = set()
        self.with_jobs: set[EngineName] = set()
        self.slow: set[str] = set()
        self.crowded: set[str] = set()
        self.may_be_cut = self.is_current = self.too_large = self.has_candidates = True
        self.times = StageTimes()
        self.is_changing = False
        self.fails: SynergaiError | None = None
        self.fails_at = 0
        self.placements = SimpleNamespace(apply=self.count_sent)
        self.sent = 0
        self.steps = 0
        self.put(stored(NET, pushed_by="me"))
        self.start()

    def start(self) -> None:
        """Start a controller, in place of one that has crashed."""
        self.followers = [self.fetch]
        self.resolved = Versions(self.catalogue)
        folders = FolderEngines(
            cast("EngineStore", self), self.catalogue, self.workers, self.copy, self.clock
        )
        self.controller = DeploymentController(
            cast("EngineStore", self),
            cast("Planning", self),
            cast("Placements", self.placements),
            cast("Workshop", self),
            folders,
            self.resolved,
            self.workers,
            self.load,
            lambda _: None,
            lambda: self.queued,
            lambda: self.with_jobs,
            self.clock,
        )

    def count_sent(self) -> None:
        self.sent += 1

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.controller.look()
            await turns(1)
            await self.controller._tasks.wait()
            await self.controller._loading.wait()
            self.clock.now += 0.5

    async def look_at_once(self, times: int, pause_s: float = 0.0) -> None:
        """Look some times, without waiting for what is begun."""
        for _ in range(times):
            await self.controller.look()
            await turns(1)
            self.clock.now += pause_s

    # --- the store --------------------------------------------------------------------------

    def model_of(self, engine: EngineName) -> str:
        found = self.of(engine)
        return "" if found is None else found.model_sha256

    def of(self, engine: EngineName) -> StoredVersion | None:
        name, version = split_version(engine)
        return self.versions.get((name, int(version)))

    def follow(self, follower: Callable[[], object]) -> None:
        self.followers.append(follower)

    def put(self, version: StoredVersion) -> None:
        self.versions[version.engine, version.version] = version
        for follower in self.followers:
            follower()

    async def copy(self, worker: ConnectedWorker, engine: EngineName) -> None:
        self.copied.append((worker.id, engine))
        await asyncio.Event().wait()

    async def set_placement(
        self, _caller: object, engine: str, version: int, placement: tuple[str, ...]
    ) -> None:
        self.step()
        self.put(replace(self.versions[engine, version], placement=placement))

    async def remove(self, engine: str, version: int) -> None:
        self.step()
        del self.versions[engine, version]
        for follower in self.followers:
            follower()

    # --- the workers ------------------------------------------------------------------------

    def fetch(self) -> None:
        """Let the workers have the stages that are placed on them."""
        for worker in self.workers.values():
            placed = {
                each.name
                for each in self.versions.values()
                if f"worker={worker.id}" in each.placement and is_stage(each.engine)
            }
            for name in set(filter(is_stage, worker.engines)) - placed:
                del worker.engines[name]
                self.catalogue.withdraw(worker.id, name)
            for name in placed - worker.engines.keys():
                fault = self.faults.get(f"{name} on {worker.id}", "")
                found = replace(stage(*stage_positions(name), of=MODEL), name=name, fault=fault)
                self.offer(worker, replace(found, too_large=bool(fault) and self.too_large))

    def offer(self, worker: ConnectedWorker, engine: Engine) -> None:
        worker.engines[engine.name] = engine
        self.catalogue.update(worker.id, engine)

    async def load(self, engine: EngineName, on: Collection[str]) -> None:
        self.step()
        self.loads.append(engine)
        able = [each for each in self.workers.values() if not each.draining]
        workers = [each for each in able if not on or each.id in on]
        if all(worker.id in self.crowded for worker in workers):
            raise EngineUnusable(f"{engine} was not loaded: other engines use the memory")
        for worker in workers:
            if engine in worker.engines and worker.id not in self.slow | self.crowded:
                worker.sessions.add(Session(engine, Configuration(1)))
        await until(
            lambda: any(each.engine == engine for worker in workers for each in worker.sessions)
        )

    # --- planner and workshop ---------------------------------------------------------------

    def step(self) -> None:
        """Fail at the chosen step, once."""
        self.steps += 1
        if self.steps == self.fails_at and self.fails is not None:
            raise self.fails

    async def candidates(
        self, engines: StoredEngines, _with_jobs: object
    ) -> dict[EngineName, Candidate]:
        found = self.of(NET) if self.has_candidates else None
        if found is None or engines.stages.get(NET, StoredStages({}, False)).has_others:
            return {}
        return {NET: Candidate(found, "needed", list(self.workers.values()))}

    def plan(
        self,
        _candidates: object,
        _stages: object,
        present: Mapping[EngineName, Sequence[Route]],
        *,
        is_changing: bool,
    ) -> list[WantedEngine] | None:
        self.present, self.is_changing = present, is_changing
        return [self.plans.pop(0)] if self.plans else None

    def may_cut(self, _version: StoredVersion) -> bool:
        return self.may_be_cut

    def limit(self, worker: ConnectedWorker, _failed_bytes: float, *, is_lasting: bool) -> None:
        self.limits[worker.id] = is_lasting

    async def bring(self, _version: StoredVersion) -> None:
        self.step()

    @asynccontextmanager
    async def cut(self, _engine: EngineName, cuts: tuple[int, ...]) -> AsyncIterator[None]:
        self.step()
        self.cuts.append(cuts)
        yield

    async def publish(self, name: EngineName, _version: int, placement: Sequence[str]) -> None:
        self.step()
        self.put(stored(name, placement))

    # --- what is deployed -------------------------------------------------------------------

    def stages(self) -> Mapping[str, tuple[str, ...]]:
        return {
            each.engine.partition(".s")[2]: tuple(w.removeprefix("worker=") for w in each.placement)
            for each in self.versions.values()
            if is_stage(each.engine)
        }

    def closed(self) -> Mapping[str, set[str]]:
        return {
            name: {stage.partition(".s")[2] for stage in worker.closed}
            for name, worker in self.workers.items()
            if worker.closed
        }

    def chain(self) -> list[tuple[int, int]]:
        return [stage_positions(each.name) for each in self.catalogue.chain(NET)]


TWO = wanted([("a", 0, 4), ("b", 4, 9)])
OTHER = wanted([("b", 0, 6), ("c", 6, 9)])
DEPLOYED = {"0-4": ("a",), "4-9": ("b",)}
MOVED = {"0-6": ("b",), "6-9": ("c",)}


async def deployed(world: World) -> World:
    world.plans.append(TWO)
    await world.look(6)
    assert world.stages() == DEPLOYED
    return world
