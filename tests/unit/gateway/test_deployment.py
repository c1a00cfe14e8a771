"""The steps by which engines are deployed in stages."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from gateway.deployment.controller import DeploymentController
from gateway.deployment.folders import FolderEngines
from gateway.deployment.observed import StoredEngines, StoredStages
from gateway.deployment.planning import RETRY_S, Candidate, Planning
from gateway.deployment.serving import GRACE_S
from gateway.deployment.stage_times import StageTimes
from gateway.deployment.workshop import Workshop
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.stages import EngineInStages
from gateway.fleet.versions import VersionPolicy, Versions
from gateway.fleet.worker import AssignmentProgress, ConnectedWorker
from gateway.hub.placements import Placements
from gateway.hub.store.storage import StoredVersion
from gateway.hub.store.store import GATEWAY, EngineStore
from synergai.core.routes.deployment import WantedEngine
from synergai.core.routes.problem import Leg, Route
from synergai.domain import (
    REMOVED,
    AssignmentId,
    Configuration,
    Engine,
    EngineName,
    Session,
    WorkerId,
)
from synergai.errors import EngineUnusable, SynergaiError, Unavailable
from synergai.models.manifest import Manifest, ManifestFile
from synergai.names import is_stage, split_version, stage_positions
from tests.clocks import FakeClock
from tests.cores import new_assignment
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


async def test_wanted_stages_are_made_placed_and_loaded() -> None:
    world = await deployed(World())
    assert world.chain() == [(0, 4), (4, 9)]
    assert world.loads == ["net.s0-4", "net.s4-9"]
    steps = world.steps
    await world.look(5)
    assert world.steps == steps


async def test_stages_that_are_no_longer_wanted_serve_until_the_others_are_loaded() -> None:
    world = await deployed(World())
    world.plans.append(OTHER)
    chains = []
    for _ in range(20):
        await world.look()
        chains.append(world.chain())
        assert world.chain() != []
    assert chains[-1] == [(0, 6), (6, 9)]
    assert world.stages() == MOVED


async def test_stages_of_a_plan_that_was_never_loaded_are_removed() -> None:
    world = World()
    world.slow |= {"a", "b", "c"}
    for plan in (TWO, OTHER, wanted([("a", 0, 2), ("c", 2, 9)])):
        world.plans.append(plan)
        await world.look_at_once(10, pause_s=0.5)
    assert world.stages() == {"0-2": ("a",), "2-9": ("c",)}


async def test_stage_is_not_removed_while_queries_run_in_it() -> None:
    world = await deployed(World())
    world.plans.append(OTHER)
    running = AssignmentProgress(new_assignment(1, "net.s4-9", "b"), 0.0)
    world.workers[WorkerId("b")].in_flight[AssignmentId(1)] = running
    world.clock.now += GRACE_S
    await world.look(20)
    assert world.chain() == [(0, 6), (6, 9)]
    assert world.stages() == MOVED | {"4-9": ("b",)}
    world.workers[WorkerId("b")].in_flight.clear()
    await world.look(10)
    assert world.stages() == MOVED


async def test_stage_stays_as_long_as_queries_may_get_to_it() -> None:
    world = await deployed(World())
    world.plans.append(OTHER)
    running = AssignmentProgress(new_assignment(1, "net.s0-4", "a"), 0.0)
    world.workers[WorkerId("a")].in_flight[AssignmentId(1)] = running
    await world.look(30)
    assert world.stages() == MOVED | DEPLOYED
    world.workers[WorkerId("a")].in_flight.clear()
    await world.look(10)
    assert world.stages() == MOVED


async def test_stage_stays_while_a_query_waits_for_it_or_for_one_before_it() -> None:
    world = await deployed(World())
    world.plans.append(OTHER)
    world.queued = {EngineName("net.s0-4")}
    await world.look(30)
    assert world.stages() == MOVED | DEPLOYED
    world.queued = {EngineName("net.s4-9")}
    await world.look(30)
    assert world.stages() == MOVED | {"4-9": ("b",)}
    world.queued = set()
    await world.look(10)
    assert world.stages() == MOVED


async def test_stage_leaves_a_worker_once_the_next_one_has_loaded_it() -> None:
    world = await deployed(World())
    world.slow.add("c")
    world.plans.append(wanted([("c", 0, 4), ("b", 4, 9)]))
    await world.look_at_once(6)
    assert world.stages() == {"0-4": ("a", "c"), "4-9": ("b",)}
    session = Session(EngineName("net.s0-4"), Configuration(1))
    world.workers[WorkerId("c")].sessions.add(session)
    await world.look(3)
    assert world.stages() == {"0-4": ("c",), "4-9": ("b",)}


async def test_load_that_is_no_longer_wanted_delays_no_other() -> None:
    world = await deployed(World())
    world.slow.add("c")
    world.plans.append(wanted([("c", 0, 4), ("b", 4, 9)]))
    await world.look_at_once(4)
    world.plans.append(wanted([("b", 0, 6), ("a", 6, 9)]))
    await world.look(20)
    assert world.stages() == {"0-6": ("b",), "6-9": ("a",)}


async def test_stage_that_its_workers_do_not_load_in_time_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.deployment.loading.LOAD_WITHIN_S", 0.01)
    world = World()
    world.slow.add("b")
    world.plans.append(TWO)
    await world.look(6)
    [told] = world.controller.deployments()
    assert (told.state, told.fault) == (
        "failed",
        "stage net.s4-9 was not loaded on b within 0.01 s",
    )
    world.slow.clear()
    world.clock.now += RETRY_S
    await world.look(2)
    [told] = world.controller.deployments()
    assert (told.state, told.fault) == ("deployed", "")


async def test_worker_that_cannot_load_its_stage_now_is_told_at_once_and_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.deployment.loading.LOAD_WITHIN_S", 0.01)
    world = await deployed(World())
    world.crowded.add("c")
    world.plans.append(wanted([("a", 0, 4), ("b", 4, 9)], [("c", 0, 4), ("b", 4, 9)]))
    await world.look(6)
    [told] = world.controller.deployments()
    assert (told.state, told.fault) == (
        "failed",
        "net.s0-4 was not loaded: other engines use the memory",
    )
    world.crowded.clear()
    world.clock.now += RETRY_S
    await world.look(4)
    [told] = world.controller.deployments()
    assert (told.state, told.fault) == ("deployed", "")


async def test_stage_that_leaves_memory_while_others_load_it_is_loaded_again() -> None:
    world = await deployed(World())
    world.slow.add("c")
    world.plans.append(wanted([("a", 0, 4), ("b", 4, 9)], [("c", 0, 4), ("b", 4, 9)]))
    await world.look_at_once(4)
    former, other = world.workers[WorkerId("a")], world.workers[WorkerId("c")]
    session = Session(EngineName("net.s0-4"), Configuration(1))
    former.sessions.discard(session)
    other.sessions.add(session)
    await world.look(3)
    assert session in former.sessions
    assert [each.state for each in world.controller.deployments()] == ["deployed"]


async def test_stage_is_deployed_while_one_of_its_workers_drains() -> None:
    world = World()
    world.workers[WorkerId("c")].draining = True
    world.plans.append(wanted([("a", 0, 4), ("b", 4, 9)], [("c", 0, 4), ("b", 4, 9)]))
    await world.look(6)
    assert [each.state for each in world.controller.deployments()] == ["deployed"]


async def test_stage_is_loaded_only_where_it_is_wanted() -> None:
    world = await deployed(World())
    world.workers[WorkerId("a")].sessions.clear()  # as other engines need its memory
    world.plans.append(wanted([("c", 0, 4), ("b", 4, 9)]))
    await world.look(6)
    assert world.stages() == {"0-4": ("c",), "4-9": ("b",)}
    assert world.workers[WorkerId("a")].sessions == set()


async def test_stages_of_a_version_that_is_no_longer_planned_are_told_as_deployed() -> None:
    world = await deployed(World())
    world.has_candidates = False
    await world.look()
    assert [each.state for each in world.controller.deployments()] == ["deployed"]
    world.start()
    assert [each.state for each in world.controller.deployments()] == ["deployed"]


async def test_change_of_the_store_hides_no_deployment() -> None:
    world = await deployed(World())
    world.put(stored("other", pushed_by="me"))
    [told] = world.controller.deployments()
    assert told.deployed == TWO.routes


async def test_stage_on_other_workers_moves_there_before_it_leaves_the_former_ones() -> None:
    world = await deployed(World())
    world.plans.append(wanted([("c", 0, 4), ("b", 4, 9)]))
    await world.look()
    assert world.stages() == {"0-4": ("a", "c"), "4-9": ("b",)}
    await world.look(6)
    assert world.stages() == {"0-4": ("c",), "4-9": ("b",)}


@pytest.mark.parametrize("crash", range(1, 9))
@pytest.mark.parametrize("takes_over", [False, True])
async def test_deployment_continues_after_a_failure_or_crash_at_any_step(
    crash: int, *, takes_over: bool
) -> None:
    world = await deployed(World())
    world.fails, world.fails_at = EngineUnusable("it is broken"), world.steps + crash
    world.plans.append(OTHER)
    for _ in range(12):
        try:
            await world.look()
        except SynergaiError:
            assert not takes_over or world.steps >= world.fails_at
        if takes_over and world.steps >= world.fails_at and not world.plans:
            world.fails = None
            world.start()
            world.plans.append(OTHER)
            takes_over = False
        assert world.chain() != []
    world.clock.now += RETRY_S
    await world.look(20)
    assert world.stages() == MOVED
    assert world.chain() == [(0, 6), (6, 9)]


async def test_cut_that_fails_is_told_once_and_what_is_deployed_stays(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await deployed(World())
    world.plans.append(OTHER)

    def cut(*_: object) -> None:
        raise EngineUnusable("model.onnx cannot be cut: it is corrupt")

    monkeypatch.setattr(world, "cut", cut)
    for _ in range(4):
        await world.look(3)
        world.clock.now += RETRY_S
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in told] == [
        "engine net is not deployed in stages: model.onnx cannot be cut: it is corrupt"
    ]
    assert world.stages() == DEPLOYED
    assert world.chain() == [(0, 4), (4, 9)]


async def test_cut_that_takes_long_delays_no_other_step() -> None:
    world = await deployed(World())
    world.plans.append(OTHER)
    await world.turn.acquire()
    for _ in range(5):
        await world.controller.look()
    assert world.stages() == DEPLOYED
    await world.remove("net", 1)
    for _ in range(20):
        await world.controller.look()
        world.clock.now += 0.5
    assert world.stages() == {}
    world.turn.release()
    await world.look(20)
    assert world.stages() == {}


@pytest.mark.parametrize("is_removed", [True, False])
async def test_cut_that_nobody_needs_any_longer_is_abandoned(*, is_removed: bool) -> None:
    world = await deployed(World())
    world.plans.append(OTHER)
    await world.turn.acquire()
    await world.controller.look()
    if is_removed:
        await world.remove("net", 1)
    else:
        world.plans.append(wanted())
    cuts = len(world.cuts)
    await world.controller.look()
    world.turn.release()
    await turns()
    assert len(world.cuts) == cuts


async def test_plan_that_is_not_possible_leaves_what_is_deployed() -> None:
    world = await deployed(World())
    world.plans.append(wanted(is_possible=False))
    await world.look(20)
    assert world.stages() == DEPLOYED


@pytest.mark.parametrize("too_large", [True, False])
async def test_worker_that_cannot_load_its_stage_is_planned_with_less_memory(
    *, too_large: bool
) -> None:
    world = World()
    world.faults["net.s4-9 on b"] = "used 300 MB, above the 240 MB that --memory-mb allows"
    world.too_large = too_large
    world.plans.append(TWO)
    await world.look(4)
    assert world.limits == {"b": too_large}
    assert world.loads == []
    world.plans.append(OTHER)
    await world.look(20)
    assert world.stages() == MOVED


async def test_several_stages_that_cannot_be_loaded_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    for place, used in (("net.s0-4 on a", 310), ("net.s4-9 on b", 300)):
        world.faults[place] = f"used {used} MB, above the 240 MB that --memory-mb allows"
    world.plans.append(TWO)
    await world.look(8)
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1


async def test_engine_that_has_proved_too_large_is_planned_with_less_memory() -> None:
    world = World()
    world.plans.append(wanted())
    world.offer(world.workers[WorkerId("a")], TOO_LARGE)
    world.offer(world.workers[WorkerId("b")], replace(WHOLE, fault="it is corrupt"))
    await world.look(3)
    assert list(world.limits) == ["a"]


async def test_engine_of_a_model_directory_is_copied_and_its_stages_deployed() -> None:
    world = World()
    del world.versions[NET, 1]
    world.offer(world.workers[WorkerId("b")], TOO_LARGE)
    await world.look(2)
    assert world.copied == [("b", NET)]
    [told] = world.controller.deployments()
    assert (told.engine, told.state, told.fault) == (NET, "planning", "")
    world.put(stored(NET, ["worker=b"], pushed_by="worker b"))
    await deployed(world)
    assert world.copied == [("b", NET)]
    world.offer(world.workers[WorkerId("b")], replace(WHOLE, fault=REMOVED))
    await world.look(20)
    assert world.versions == {}


async def test_copy_is_placed_on_workers_that_may_hold_it_whole() -> None:
    world = World()
    world.offer(world.workers[WorkerId("b")], TOO_LARGE)
    world.put(stored(NET, ["worker=b"], pushed_by="worker b"))
    world.plans.append(wanted())
    await world.look(2)
    assert world.versions[NET, 1].placement == ("worker=a", "worker=b", "worker=c")


async def test_engine_that_a_worker_can_hold_again_runs_whole() -> None:
    world = await deployed(World())
    world.plans.append(wanted())
    await world.look(10)
    assert world.stages() == DEPLOYED
    world.offer(world.workers[WorkerId("c")], WHOLE)
    await world.look(10)
    assert world.loads[-1] == NET
    assert world.stages() == {}
    loads = len(world.loads)
    world.plans.append(TWO)
    await world.look(6)
    assert world.stages() == DEPLOYED
    assert world.loads[loads:] == ["net.s0-4", "net.s4-9"]


@pytest.mark.parametrize("policy", [VersionPolicy(), VersionPolicy(base="2")])
async def test_stages_leave_once_a_later_version_answers_and_their_jobs_have_ended(
    monkeypatch: pytest.MonkeyPatch, policy: VersionPolicy
) -> None:
    world = await deployed(World())
    world.resolved.set_policy("net", policy)
    later = EngineName("net/2")
    version = stored(later, pushed_by="me")

    async def candidates(*_: object) -> dict[EngineName, Candidate]:
        return {later: Candidate(version, "auto", list(world.workers.values()))}

    monkeypatch.setattr(world, "candidates", candidates)
    world.put(version)
    whole = replace(stage(0, 9), name=later, stage_of="", stage_end=0, digest=MODEL)
    world.offer(world.workers[WorkerId("c")], whole)
    world.plans.append(replace(wanted(), name=later))
    world.with_jobs = {NET}
    await world.look(10)
    assert world.stages() == DEPLOYED
    assert world.chain(), "its jobs end in its own stages"
    world.with_jobs = set()
    await world.look(10)
    assert world.stages() == {}


async def test_engine_in_stages_is_sent_to_workers_once_these_have_been_at_rest() -> None:
    world = await deployed(World())
    assert world.placements.withholds(NET)
    world.clock.now += 20.0
    await world.look()
    assert world.placements.withholds(NET)
    assert world.sent == 0
    world.clock.now += 11.0
    await world.look()
    assert not world.placements.withholds(NET)
    assert world.sent == 1


async def test_new_version_of_an_engine_in_stages_is_withheld_until_it_turns_out_to_need_none() -> (
    None
):
    world = await deployed(World())
    later = EngineName("net/2")
    world.put(stored(later, pushed_by="me"))
    withheld = filter(world.placements.withholds, (later, "net.s0-4", "other"))
    assert list(withheld) == [later]
    await world.look()
    assert not world.placements.withholds(later)
    assert world.sent == 1


async def test_engine_whose_new_plan_is_not_possible_is_sent_to_workers_that_join() -> None:
    world = await deployed(World())
    world.plans.append(wanted(is_possible=False))
    await world.look()
    assert not world.placements.withholds(NET)
    assert world.sent == 1


async def test_engine_that_is_to_run_whole_again_is_sent_at_once() -> None:
    world = await deployed(World())
    world.plans.append(wanted())
    await world.look()
    assert not world.placements.withholds(NET)
    assert world.sent == 1


async def test_engine_is_unavailable_while_a_worker_with_one_of_its_stages_is_away() -> None:
    world = World()
    whole = replace(stage(0, 9), name=NET, stage_of="", fault="it is too large")
    world.catalogue.update(WorkerId("a"), whole)
    with pytest.raises(EngineUnusable, match="too large"):
        world.catalogue.find(NET)
    world.catalogue.update(WorkerId("a"), replace(whole, too_large=True))
    with pytest.raises(Unavailable, match="is being deployed"):
        world.catalogue.find(NET)
    world.catalogue.update(WorkerId("a"), whole)
    await world.look()
    with pytest.raises(Unavailable, match="is being deployed"):
        world.catalogue.find(NET)
    await deployed(world)
    with pytest.raises(EngineInStages):
        world.catalogue.find(NET)
    world.catalogue.withdraw(WorkerId("b"), EngineName("net.s4-9"))
    world.start()
    with pytest.raises(Unavailable, match="is being deployed"):
        world.catalogue.find(NET)


@pytest.mark.parametrize(
    ("too_large", "may_be_cut", "error"),
    [(True, True, Unavailable), (True, False, EngineUnusable), (False, True, EngineUnusable)],
)
async def test_engine_that_nothing_fits_now_is_unavailable_and_a_corrupt_one_is_unusable(
    error: type[SynergaiError], *, too_large: bool, may_be_cut: bool
) -> None:
    world = World()
    world.may_be_cut = may_be_cut
    whole = replace(stage(0, 9), name=NET, stage_of="", fault="its fault", too_large=too_large)
    world.offer(world.workers[WorkerId("a")], whole)
    world.plans.append(wanted(is_possible=False))
    await world.look()
    with pytest.raises(error) as raised:
        world.catalogue.find(NET)
    assert type(raised.value) is error


async def test_stages_of_a_former_model_of_the_version_are_made_again() -> None:
    world = await deployed(World())
    cuts = len(world.cuts)
    manifest = replace(
        world.versions["net", 1].manifest, files=(ManifestFile("model.onnx", "c" * 64, 1000),)
    )
    world.put(replace(world.versions["net", 1], manifest=manifest))
    await world.look(2)
    assert world.cuts[cuts:] == [(4,)]


@pytest.mark.parametrize(
    "policy", [VersionPolicy(), VersionPolicy(base="1"), VersionPolicy(base="1", target="2")]
)
async def test_stages_leave_the_store_with_their_engine(policy: VersionPolicy) -> None:
    world = await deployed(World())
    world.resolved.set_policy("net", policy)
    await world.remove("net", 1)
    await world.look(10)
    assert world.stages() == {}


async def test_engine_with_a_stage_that_somebody_has_placed_is_theirs() -> None:
    world = await deployed(World())
    world.put(stored("net.s0-4", ["worker=c"], pushed_by="me"))
    world.plans.append(OTHER)
    await world.look(20)
    assert world.stages() == DEPLOYED | {"0-4": ("c",)}
