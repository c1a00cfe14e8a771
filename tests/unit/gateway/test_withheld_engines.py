"""Engines are withheld from workers while their stages are being deployed."""

from synergai.domain import EngineName
from tests.unit.gateway.deployment_world import NET, World, deployed, stored, wanted


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
