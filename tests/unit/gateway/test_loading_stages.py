"""Workers load the stages that are placed on them, or cannot."""

import logging

import pytest

from gateway.deployment.planning import RETRY_S
from synergai.domain import Configuration, EngineName, Session, WorkerId
from tests.unit.gateway.deployment_world import MOVED, OTHER, TWO, World, deployed, wanted


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


async def test_stage_is_loaded_only_where_it_is_wanted() -> None:
    world = await deployed(World())
    world.workers[WorkerId("a")].sessions.clear()  # as other engines need its memory
    world.plans.append(wanted([("c", 0, 4), ("b", 4, 9)]))
    await world.look(6)
    assert world.stages() == {"0-4": ("c",), "4-9": ("b",)}
    assert world.workers[WorkerId("a")].sessions == set()


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
