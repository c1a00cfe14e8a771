"""When engines are planned, and what a planner is told."""

import asyncio
from typing import cast

import pytest
from msgspec.structs import replace

from gateway.deployment.observed import stored_engines
from gateway.deployment.planning import RETRY_S
from gateway.deployment.planning_process import PlanFailed
from gateway.fleet.versions import VersionPolicy
from gateway.hub.store.store import EngineStore
from synergai.core.routes.deployment import PlanOrder, WantedEngine
from synergai.domain import EngineName, WorkerId
from synergai.models.manifest import ManifestFile
from synergai.v1 import common_pb2
from tests.unit.gateway.conftest import make_worker
from tests.unit.gateway.deployment_world import NET, stored
from tests.unit.gateway.planning_world import WHOLE, World
from tests.unit.gateway.test_stages import stage


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
