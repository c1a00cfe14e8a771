"""When engines are planned, and what a planner is told."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gateway.deployment import planning_process
from gateway.deployment.observed import stored_engines
from gateway.deployment.planning import RETRY_S, Planning
from gateway.deployment.planning_process import PlanFailed, PlanningProcesses
from gateway.deployment.stage_times import WINDOW_S
from gateway.deployment.workshop import Workshop
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.versions import VersionPolicy, Versions
from gateway.fleet.worker import ConnectedWorker
from gateway.hub.placements import Placements
from gateway.hub.store.storage import StoredVersion
from gateway.hub.store.store import EngineStore
from synergai.core.routes.deployment import PlanOrder, StageTime, WantedEngine
from synergai.core.routes.fleet import FleetFile, FleetWorker
from synergai.core.routes.problem import Leg, Route
from synergai.domain import EngineName, WorkerId
from synergai.errors import NotFound, Overloaded
from synergai.models.manifest import ManifestFile
from synergai.v1 import common_pb2
from synergai.wire.work_transport import SentOver
from tests.clocks import FakeClock
from tests.unit.gateway.conftest import make_worker
from tests.unit.gateway.test_deployment import NET, stored
from tests.unit.gateway.test_stage_times import run
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


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_engine_needs_stages_once_all_its_workers_have_failed_to_load_it(
    world: World,
) -> None:
    assert await world.names() == [NET]
    engines = world.workers[WorkerId("b")].engines
    engines[NET] = replace(WHOLE, fault="it is being inspected", pending=True)
    assert await world.names() == []
    del engines[NET]
    assert await world.names() == []
    engines[NET] = WHOLE
    world.catalogue.update(WorkerId("b"), WHOLE)
    assert await world.names() == []


async def test_copy_needs_no_try_of_workers_that_it_is_not_placed_on(world: World) -> None:
    world.put(stored(NET, ["worker=a"], pushed_by="worker a"))
    worker = world.workers[WorkerId("b")]
    del worker.engines[NET]
    assert await world.names() == [NET]
    worker.placed["net", 1] = common_pb2.Placed(engine="net", version=1)
    assert await world.names() == []
    worker.placed["net", 1].state = common_pb2.PLACED_STATE_FAILED
    assert await world.names() == [NET]


async def test_engine_whose_stages_are_the_gateways_stays_planned_and_others_are_left(
    world: World,
) -> None:
    world.catalogue.update(WorkerId("b"), WHOLE)
    world.put(stored("net.s0-4", ["worker=a"]))
    assert await world.names() == [NET]
    world.put(stored("net.s4-9", ["label=edge"], pushed_by="me"))
    assert await world.names() == []


async def test_new_version_of_an_engine_in_stages_is_planned_before_workers_have_tried_it(
    world: World,
) -> None:
    for number, cuts in enumerate([(0, 4), (4, 9)]):
        world.put(stored(f"net.s{cuts[0]}-{cuts[1]}", ["worker=a"]))
        world.catalogue.update(WorkerId("ab"[number]), stage(*cuts))
    world.put(replace(stored(NET, pushed_by="me"), version=2))
    assert await world.names() == ["net/2"]


async def test_version_that_requests_are_to_get_is_planned(world: World) -> None:
    for version in (2, 3):
        world.put(replace(stored(NET, pushed_by="me"), version=version))
        for worker in world.workers.values():
            name = EngineName(f"net/{version}")
            worker.engines[name] = replace(WHOLE, name=name, fault="it is too large")
    assert await world.names() == ["net/3"]
    world.resolved.set_policy("net", VersionPolicy(base="1"))
    assert await world.names() == ["net"]
    world.resolved.set_policy("net", VersionPolicy(base="1", target="2"))
    world.catalogue.update(WorkerId("b"), WHOLE)
    assert await world.names() == ["net/2"]


async def test_former_version_in_a_rollout_is_planned_again_if_its_stages_break(
    world: World,
) -> None:
    world.put(replace(stored(NET, pushed_by="me"), version=2))
    world.put(stored("net.s0-4", ["worker=a"]))
    world.put(stored("net.s4-9", ["worker=b"]))
    for worker in world.workers.values():
        later = replace(WHOLE, name=EngineName("net/2"), fault="it is too large")
        worker.engines[later.name] = later
    world.resolved.set_policy("net", VersionPolicy(base="1", target="2"))
    world.catalogue.update(WorkerId("a"), stage(0, 4))
    world.catalogue.update(WorkerId("b"), stage(4, 9))
    assert await world.names() == ["net/2"]
    world.catalogue.withdraw(WorkerId("b"), EngineName("net.s4-9"))
    assert await world.names() == ["net/2", "net"]


async def test_former_version_is_planned_if_it_lacks_stages_for_its_jobs(world: World) -> None:
    world.put(replace(stored(NET, pushed_by="me"), version=2))
    for worker in world.workers.values():
        later = replace(WHOLE, name=EngineName("net/2"), fault="it is too large")
        worker.engines[later.name] = later
    world.with_jobs = {NET, later.name, EngineName("other")}
    assert await world.names() == ["net/2", "net"]
    for each in (stage(0, 4), stage(4, 9)):
        world.catalogue.update(WorkerId("a"), each)
    assert await world.names() == ["net/2"]
    world.catalogue.remove_worker(WorkerId("a"))
    world.with_jobs = set()
    assert await world.names() == ["net/2"]


async def test_plan_is_made_once_nothing_has_changed_for_a_while(world: World) -> None:
    assert await world.look() == 0
    assert await world.look(10) == 1
    [order] = world.orders
    assert [(each.id, each.memory_mb) for each in order.fleet.workers] == [("a", 240), ("b", 240)]
    assert await world.look(100, 10.0) == 1


async def test_flapping_worker_is_not_planned_for(world: World) -> None:
    await world.look(10)
    other = make_worker("c")
    other.engines = {NET: replace(WHOLE, fault="it is too large")}
    for _ in range(5):
        world.workers[WorkerId("c")] = other
        await world.look()
        del world.workers[WorkerId("c")]
        assert await world.look() == 1
    world.workers[WorkerId("c")] = other
    assert await world.look(10) == 2


async def test_worker_has_less_memory_than_it_says_until_its_agent_starts_again(
    world: World,
) -> None:
    worker = world.workers[WorkerId("a")]
    worker.instance = "one"
    await world.look(10)
    world.planning.limit(worker, 150_000_000, is_lasting=True)
    world.planning.limit(worker, 200_000_000, is_lasting=True)  # as another engine did
    assert await world.look(10) == 2
    assert [each.memory_mb for each in world.orders[-1].fleet.workers] == [125, 240]
    worker.instance = "two"
    assert await world.look(10) == 3
    assert [each.memory_mb for each in world.orders[-1].fleet.workers] == [240, 240]


async def test_worker_whose_memory_other_engines_had_is_planned_with_less_for_a_minute(
    world: World,
) -> None:
    worker = world.workers[WorkerId("a")]
    await world.look(10)
    for failed_bytes, expected in ((150_000_000, 125), (190_000_000, 165)):
        world.planning.limit(worker, failed_bytes, is_lasting=False)
        for pause_s, planned in ((1.0, expected), (10.0, 240)):
            await world.look(8, pause_s)
            assert world.orders[-1].fleet.workers[0].memory_mb == planned


async def test_memory_that_other_engines_had_for_a_while_leaves_what_a_worker_never_has(
    world: World,
) -> None:
    worker = world.workers[WorkerId("a")]
    world.planning.limit(worker, 200_000_000, is_lasting=True)
    world.planning.limit(worker, 150_000_000, is_lasting=False)
    for pause_s, expected in ((1.0, 125), (10.0, 175)):
        await world.look(8, pause_s)
        assert world.orders[-1].fleet.workers[0].memory_mb == expected


async def test_planner_that_has_failed_is_tried_again_later(world: World) -> None:
    world.fault = "it is broken"
    await world.look(3)
    with pytest.raises(PlanFailed):
        await world.look(2)
    assert await world.look(int(RETRY_S)) == 1
    with pytest.raises(PlanFailed):
        await world.look(int(3 * RETRY_S))
    assert len(world.orders) == 2


async def test_nothing_is_planned_without_an_engine_that_needs_it(world: World) -> None:
    world.versions.clear()
    assert await world.look(10) == 0


async def test_plan_waits_for_no_cut(world: World) -> None:
    async with world.workshop.turn:
        assert await world.look(10) == 1


async def test_plan_that_takes_long_delays_no_look(world: World) -> None:
    engines, is_told = stored_engines(cast("EngineStore", world)), asyncio.Event()
    answer = world.answer

    async def slow(order: PlanOrder) -> list[WantedEngine]:
        await is_told.wait()
        return await answer(order)

    world.workshop.processes.plan = slow
    candidates = await world.planning.candidates(engines, set())
    for _ in range(100):
        assert world.planning.plan(candidates, engines.stages, {}) is None
        await asyncio.sleep(0)
        world.clock.now += 0.5
    is_told.set()
    await world.planning.tasks.wait()
    assert world.planning.plan(candidates, engines.stages, {}) == [
        WantedEngine(name=NET, reason="as asked")
    ]
    assert len(world.orders) == 1


async def test_plan_for_workers_that_have_changed_meanwhile_is_not_followed(world: World) -> None:
    answer = world.answer

    async def change(order: PlanOrder) -> list[WantedEngine]:
        if len(world.orders) < 2:
            world.workers[WorkerId("a")].memory_limit_bytes -= 1_000_000
        return await answer(order)

    world.workshop.processes.plan = change
    assert await world.look(4) == 1
    assert world.found == []
    assert await world.look(12) == 3
    assert world.found[0].reason.endswith("planned again: the workers have changed")


async def test_plan_is_followed_at_last_if_workers_change_all_the_time(world: World) -> None:
    answer = world.answer

    async def change(order: PlanOrder) -> list[WantedEngine]:
        world.workers[WorkerId("a")].memory_limit_bytes -= 1_000_000
        return await answer(order)

    world.workshop.processes.plan = change
    await world.look(20)
    assert world.found != []


@pytest.mark.parametrize("unreadable", ["file", "other"])
async def test_engine_that_cannot_be_read_is_not_planned_until_it_can(
    world: World, unreadable: str
) -> None:
    name, found = EngineName("other"), []
    files = (*stored("other").manifest.files, ManifestFile("engine.toml", "file", 9))
    manifest = replace(stored("other").manifest, files=files)
    world.put(replace(stored("other", pushed_by="me"), digest="c", manifest=manifest))
    for worker in world.workers.values():
        worker.engines[name] = replace(WHOLE, name=name, fault="it is too large")
    world.unreadable = {unreadable}
    engines = stored_engines(cast("EngineStore", world))
    for _ in range(5):
        candidates = await world.planning.candidates(engines, set())
        found += world.planning.plan(candidates, engines.stages, {}) or []
        await world.planning.tasks.wait()
        world.clock.now += 0.5
    assert [each.name for each in world.orders[-1].engines] == [NET]
    assert [(each.name, each.is_possible) for each in found] == [(NET, True), (name, False)]
    assert found[1].reason in ("the store has no content", "there is no room for it")
    world.unreadable = set()
    await world.look(int(3 * RETRY_S))
    assert [each.name for each in world.orders[-1].engines] == [NET, name]
    assert len(world.orders) == 2


async def test_stage_that_becomes_slower_is_planned_for_after_a_pause(world: World) -> None:
    worker = world.workers[WorkerId("a")]
    plans: list[int] = []
    for seconds in (0.1, 0.1, 0.11, 0.3, 0.3, 0.3):
        for _ in range(5):
            run(worker, "net.s0-4", seconds, 20)
            await world.look(pause_s=WINDOW_S)
        plans.append(len(world.orders))
    assert plans == [1, 1, 1, 2, 2, 2]
    [observed] = world.orders[-1].engines[0].observed
    assert observed == StageTime("a", 0, 4, observed.seconds)
    assert observed.seconds == pytest.approx(0.3)
    assert world.orders[-1].engines[0].queries_per_s == pytest.approx(20 / WINDOW_S)


@pytest.mark.parametrize(("seconds", "plans"), [(0.11, 1), (0.3, 2)])
async def test_stage_is_planned_again_once_its_time_is_not_as_predicted(
    world: World, seconds: float, plans: int
) -> None:
    world.times = (StageTime("a", 0, 4, 0.1),)
    assert await world.look(10) == 1
    for _ in range(10):
        run(world.workers[WorkerId("a")], "net.s0-4", seconds, 20)
        await world.look(pause_s=WINDOW_S)
    assert len(world.orders) == plans


@pytest.mark.parametrize("loaded", ["other.s0-4", "other"])
async def test_demand_that_shifts_between_engines_is_planned_for(world: World, loaded: str) -> None:
    worker = world.workers[WorkerId("a")]

    async def ask(queries: int) -> int:
        """Return the number of plans after so many queries in each of many windows."""
        for _ in range(80):
            run(worker, "net.s0-4", 0.02, 10)
            run(worker, loaded, 0.002, queries)
            await world.look(2, pause_s=WINDOW_S / 2)
        return len(world.orders)

    before = await ask(20)
    assert await ask(400) == before
    world.add("other")
    before = await ask(20)
    assert await ask(25) == before
    assert await ask(300) > before
    rates = [each.queries_per_s for each in world.orders[-1].engines]
    assert rates[0] == pytest.approx(10 / WINDOW_S)
    assert rates[1] > 5 * rates[0]
    before, share = len(world.orders), "the share of the queries that are for"
    assert [each.reason for each in world.found] == [
        f"as asked; planned again: {share} {name} has fallen" for name in ("net", "another engine")
    ]
    assert await ask(320) == before
    assert await ask(0) > before
    assert [each.reason for each in world.found] == [
        f"as asked; planned again: {share} {name} has risen" for name in ("net", "another engine")
    ]


async def test_what_is_asked_is_planned_for_once_it_is_known_although_stages_are_loaded(
    world: World,
) -> None:
    world.add("other")
    before = await world.look(10)
    worker = world.workers[WorkerId("a")]

    async def ask(windows: int, queries: int) -> int:
        for _ in range(windows):
            run(worker, "net.s0-4", 0.02, 10)
            run(worker, "other.s0-4", 0.002, queries)
            await world.look(2, pause_s=WINDOW_S / 2, is_changing=True)
        return len(world.orders)

    assert await ask(2, 10) == before
    assert await ask(3, 10) == before + 1
    assert "the share of the queries that are for net is known" in world.found[0].reason
    assert await ask(10, 100) == before + 1


async def test_plan_over_unknown_links_is_made_again_with_what_was_measured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer_probes(_seconds: float) -> None:
        for worker in world.workers.values():
            worker.measure_link = lambda: SentOver(125_000.0, 0.01)
            worker.received_bytes_per_s = 250_000.0

    monkeypatch.setattr(asyncio, "sleep", answer_probes)
    world.routes = (Route((Leg("a", 0, 4), Leg("b", 4, 9))),)
    assert await world.look(6) == 2
    before, behind = (
        {(pair.source, pair.target): pair.mbit_s for pair in order.fleet.pairs}
        for order in world.orders
    )
    assert set(before.values()) == {1000.0}
    assert behind == {
        ("gateway", "a"): 1.0,
        ("gateway", "b"): 1.0,
        ("a", "gateway"): 2.0,
        ("b", "gateway"): 2.0,
    }
    assert world.found[0].reason == "as asked"


async def test_reason_of_a_plan_names_the_links_that_could_not_be_measured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(_seconds: float) -> None:
        world.workers[WorkerId("a")].measure_link = lambda: SentOver(125_000.0, 0.01)

    monkeypatch.setattr(asyncio, "sleep", wait)
    world.routes = (Route((Leg("a", 0, 4), Leg("b", 4, 9))),)
    await world.look(6)
    links = "a to gateway, b to gateway, gateway to b"
    assert world.found[0].reason == f"as asked; links not measured: {links}"


async def test_reason_of_a_plan_names_what_has_changed(world: World) -> None:
    worker, reasons = world.workers[WorkerId("a")], []

    async def plan() -> None:
        await world.look(10)
        reasons.append(world.found[0].reason.removeprefix("as asked"))

    await plan()
    world.add("other")
    await plan()
    worker.memory_limit_bytes = 200_000_000
    await plan()
    world.planning.limit(worker, 100_000_000, is_lasting=True)
    await plan()
    world.workers[WorkerId("c")] = other = make_worker("c")
    other.engines = worker.engines
    await plan()
    assert reasons == [
        "",
        "; planned again: the engines have changed",
        "; planned again: the workers have changed",
        "; planned again: the memory for stages has changed",
        "; planned again: the workers have changed",
    ]


async def test_reason_of_a_plan_names_the_stages_of_its_own_engine_only(world: World) -> None:
    worker = world.workers[WorkerId("a")]
    world.add("other/2")
    await world.look(10)
    for _ in range(8):
        run(worker, "other.s0-4/2", 0.001 * WINDOW_S, 5)
        await world.look(2, pause_s=WINDOW_S)
    assert [each.reason for each in world.found] == [
        f"as asked; planned again: the time of {name} on a is known"
        for name in ("another engine", "other.s0-4/2")
    ]


async def test_figure_whose_change_alters_nothing_pauses_and_others_do_not(world: World) -> None:
    worker = world.workers[WorkerId("a")]
    plans = []
    for first, second in ((0.01, 0.01), (0.03, 0.01), (0.01, 0.01), (0.01, 0.03)):
        for _ in range(4):
            run(worker, "net.s0-4", first, 4)
            run(worker, "net.s4-9", second, 4)
            await world.look(pause_s=WINDOW_S)
        plans.append(len(world.orders))
    # The first time has risen, which changed nothing; it falls, and the other one rises.
    assert plans == [plans[0], plans[0] + 1, plans[0] + 1, plans[0] + 2]


def an_order() -> PlanOrder:
    fleet = FleetFile(workers=(FleetWorker(id="a", worker_class=cast("Any", "local")),))
    return PlanOrder(models="", dictionary="", fleet=fleet, engines=(), planner="own")


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("import sys; sys.exit('ValueError: there is no way')", "ValueError: there is no way"),
        ("import os; os._exit(3)", "its process ended with exit code 3"),
        ("print('nonsense')", "JSON is malformed"),
        ("import time; time.sleep(60)", "there was no answer within 0.5 s"),
    ],
)
async def test_planner_that_fails_hangs_or_answers_nonsense_is_told(
    monkeypatch: pytest.MonkeyPatch, program: str, fault: str
) -> None:
    monkeypatch.setattr(planning_process, "_COMMAND", ("-c", program))
    monkeypatch.setattr(planning_process, "_PLAN_WITHIN_S", 0.5 if "sleep" in program else 60.0)
    with pytest.raises(PlanFailed, match=f"the planner 'own' has failed: .*{fault}"):
        await PlanningProcesses().plan(an_order())


async def test_planner_does_not_get_the_secrets_of_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    program = "import os, sys; sys.exit('gets ' + ' '.join(sorted(os.environ)))"
    monkeypatch.setattr(planning_process, "_COMMAND", ("-c", program))
    with pytest.raises(PlanFailed, match="PYTHONHASHSEED") as caught:
        await PlanningProcesses().plan(an_order())
    assert "PGPASSWORD" not in str(caught.value)
    assert "AWS_SECRET_ACCESS_KEY" not in str(caught.value)
