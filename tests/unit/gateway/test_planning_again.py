"""Plans are made again once times, links or demand have changed, and say why."""

import asyncio

import pytest

from gateway.deployment.stage_times import WINDOW_S
from synergai.core.routes.deployment import StageTime
from synergai.core.routes.problem import Leg, Route
from synergai.domain import WorkerId
from synergai.wire.work_transport import SentOver
from tests.unit.gateway.conftest import make_worker
from tests.unit.gateway.planning_world import World
from tests.unit.gateway.test_stage_times import run


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


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
