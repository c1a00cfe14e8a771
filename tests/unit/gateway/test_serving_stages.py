"""The stages in which queries run while others are deployed in their place."""

import pytest
from msgspec.structs import replace

from gateway.deployment.planning import Candidate
from gateway.fleet.versions import VersionPolicy
from gateway.fleet.worker import AssignmentProgress, ConnectedWorker
from synergai.domain import REMOVED, AssignmentId, Configuration, EngineName, Session, WorkerId
from tests.cores import new_assignment
from tests.unit.gateway.deployment_world import (
    DEPLOYED,
    MODEL,
    MOVED,
    NET,
    OTHER,
    TWO,
    WHOLE,
    World,
    deployed,
    stored,
    wanted,
)
from tests.unit.gateway.test_stages import stage


async def test_workers_run_no_stage_that_is_not_loaded_while_another_one_serves() -> None:
    world = await deployed(World())
    world.slow.add("c")
    world.plans.append(OTHER)
    await world.look_at_once(6)
    assert world.chain() == [(0, 4), (4, 9)]
    assert world.closed() == {"b": {"0-6"}, "c": {"6-9"}}
    world.workers[WorkerId("c")].sessions.add(Session(EngineName("net.s6-9"), Configuration(1)))
    await world.look(2)
    assert world.chain() == [(0, 6), (6, 9)]
    assert world.closed() == {}


async def test_worker_that_shares_a_stage_runs_it_once_it_is_loaded_there() -> None:
    world = await deployed(World())
    world.slow.add("c")
    world.plans.append(wanted([("a", 0, 4), ("b", 4, 9)], [("a", 0, 4), ("c", 4, 9)]))
    await world.look_at_once(6)
    assert world.closed() == {"c": {"4-9"}}
    assert world.workers[WorkerId("c")].usable_engines == {"net.s4-9"}
    assert world.workers[WorkerId("c")].open_engines == set()


async def test_stage_of_a_plan_that_was_given_up_is_removed_before_the_next_is_deployed() -> None:
    world = await deployed(World())
    world.slow.add("c")
    world.plans.append(wanted([("a", 0, 2), ("c", 2, 9)]))
    await world.look_at_once(6)
    assert world.stages() == DEPLOYED | {"0-2": ("a",), "2-9": ("c",)}
    world.plans.append(OTHER)
    await world.look_at_once(10, pause_s=0.5)
    assert world.stages() == DEPLOYED | MOVED
    assert world.chain() == [(0, 4), (4, 9)]


def with_little_memory(world: World, name: str) -> ConnectedWorker:
    """Give a worker memory for one stage, not for two."""
    worker = world.workers[WorkerId(name)]
    worker.memory_limit_bytes = 100_000_000
    return worker


async def test_queries_wait_where_there_is_no_memory_for_the_former_and_the_new_stage() -> None:
    world = await deployed(World())
    worker = with_little_memory(world, "b")
    worker.in_flight[AssignmentId(1)] = AssignmentProgress(new_assignment(1, "net.s4-9", "b"), 0.0)
    world.plans.append(OTHER)
    loads = len(world.loads)
    await world.look(8)
    assert world.closed() == {"a": {"0-4"}, "b": {"4-9"}}
    assert world.loads[loads:] == []
    worker.in_flight.clear()
    await world.look(2)
    assert world.loads[loads:] == ["net.s0-6", "net.s6-9"]
    assert world.chain() == [(0, 6), (6, 9)]
    assert world.stages() == MOVED | DEPLOYED


def under_way(world: World) -> tuple[bool, set[str], bool]:
    """Return whether, of which engines, and how urgently stages are being deployed."""
    stages = world.catalogue.stages
    return world.is_changing, set(stages.awaited), stages.degraded


async def test_later_version_starts_from_the_plan_of_the_one_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await deployed(World())
    later, workers = EngineName("net/2"), list(world.workers.values())
    found = {name: Candidate(stored(name), "auto", workers) for name in (NET, later)}

    async def candidates(*_: object) -> dict[EngineName, Candidate]:
        return found

    monkeypatch.setattr(world, "candidates", candidates)
    world.put(found[later].stored)
    world.slow.add("b")
    await world.controller.look()
    assert world.present[later] == TWO.routes
    assert world.catalogue.stages.awaited == {later}
    world.plans.append(replace(TWO, name=later))
    await world.look_at_once(6)
    assert under_way(world) == (True, {later}, True)
    world.workers[WorkerId("b")].sessions.add(Session(EngineName("net.s4-9/2"), Configuration(1)))
    await world.look(13)
    assert under_way(world) == (False, set(), False)


async def test_deployment_that_does_not_end_holds_up_nothing_for_longer_than_a_minute() -> None:
    world = World()
    world.crowded.update("abc")
    world.plans.append(TWO)
    await world.look(25)
    assert under_way(world) == (False, set(), False), "it has failed"
    world = World()
    world.slow.update("abc")
    world.plans.append(TWO)
    await world.look_at_once(200, pause_s=0.5)
    assert under_way(world) == (False, set(), True)


async def test_no_query_waits_for_new_stages_while_another_plan_is_to_come() -> None:
    world = await deployed(World())
    with_little_memory(world, "b")
    world.is_current = False
    world.plans.append(OTHER)
    await world.look(8)
    assert world.closed() == {"b": {"0-6"}, "c": {"6-9"}}
    world.is_current = True
    await world.look(4)
    assert world.chain() == [(0, 6), (6, 9)]


async def test_plans_keep_what_was_wanted_last_also_before_it_is_loaded() -> None:
    world = await deployed(World())
    world.slow.add("c")
    world.plans.append(OTHER)
    await world.look_at_once(6)
    assert world.present == {NET: OTHER.routes}
    world.start()
    await world.controller.look()
    assert len(world.present[NET]) == 1


async def test_requests_prefer_the_stages_of_an_engine_once_they_are_loaded() -> None:
    world = World()
    await world.look()
    assert world.catalogue.stages.preferred == set()
    assert (await deployed(world)).catalogue.stages.preferred == {NET}
    world.offer(world.workers[WorkerId("a")], WHOLE)
    world.plans.append(wanted())
    await world.look(6)
    assert world.catalogue.stages.preferred == set()


async def test_requests_prefer_the_stages_of_a_former_version_after_a_takeover() -> None:
    world = await deployed(World())
    world.has_candidates = False
    world.start()
    world.resolved.set_policy("net", VersionPolicy(base="1", target="2"))
    world.offer(world.workers[WorkerId("a")], WHOLE)
    world.catalogue.stages.preferred = set()
    await world.look()
    assert world.catalogue.stages.preferred == {NET}


async def test_former_stages_run_on_if_the_plan_changes_while_room_was_made_for_others() -> None:
    world = await deployed(World())
    with_little_memory(world, "b")
    world.slow.add("c")
    world.plans.append(OTHER)
    await world.look_at_once(6)
    assert world.chain() == [(0, 6), (6, 9)]
    world.plans.append(wanted())
    await world.controller.look()
    assert world.chain() == [(0, 4), (4, 9)]


async def test_cut_for_a_plan_that_was_given_up_delays_no_other() -> None:
    world = await deployed(World())
    world.plans.append(OTHER)
    async with world.turn:
        await world.controller.look()
        await world.controller.look()
        world.plans.append(wanted([("b", 0, 3), ("c", 3, 9)]))
        await world.controller.look()
    await world.look(8)
    assert world.cuts[1:] == [(3,)]


async def test_former_stages_run_again_if_the_new_ones_cannot_be_loaded_in_their_place() -> None:
    world = await deployed(World())
    with_little_memory(world, "b")
    world.crowded.add("c")
    world.plans.append(OTHER)
    await world.look(8)
    assert [each.state for each in world.controller.deployments()] == ["failed"]
    assert world.chain() == [(0, 4), (4, 9)]
    assert world.closed() == {"b": {"0-6"}, "c": {"6-9"}}


async def test_new_stages_run_at_once_if_the_former_ones_no_longer_make_up_the_engine() -> None:
    world = await deployed(World())
    del world.workers[WorkerId("a")]
    world.catalogue.withdraw(WorkerId("a"), EngineName("net.s0-4"))
    world.slow.add("c")
    world.plans.append(OTHER)
    await world.look_at_once(6)
    assert world.chain() == [(0, 6), (6, 9)]
    assert world.closed() == {"b": {"4-9"}}


async def test_no_query_begins_in_a_removed_stage_that_a_worker_has_for_another_moment() -> None:
    world = await deployed(World())
    world.plans.append(wanted([("a", 0, 4), ("c", 4, 6), ("b", 6, 9)]))
    await world.look(20)
    assert world.stages() == {"0-4": ("a",), "4-6": ("c",), "6-9": ("b",)}
    world.offer(world.workers[WorkerId("b")], stage(4, 9, of=MODEL))
    await world.look()
    assert world.chain() == [(0, 4), (4, 6), (6, 9)]


async def test_worker_that_is_still_removing_a_stage_has_not_failed_to_load_it() -> None:
    world = await deployed(World())
    world.faults["net.s6-9 on c"] = REMOVED
    world.plans.append(OTHER)
    await world.look(8)
    assert (world.controller.deployments()[0].fault, world.limits) == ("", {})
    world.offer(world.workers[WorkerId("c")], stage(6, 9, of=MODEL))
    await world.look(2)
    assert world.chain() == [(0, 6), (6, 9)]
