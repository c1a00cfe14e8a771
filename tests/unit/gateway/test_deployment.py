"""The steps by which engines are deployed in stages."""

import logging

import pytest
from msgspec.structs import replace

from gateway.deployment.planning import RETRY_S, Candidate
from gateway.deployment.serving import GRACE_S
from gateway.fleet.stages import EngineInStages
from gateway.fleet.versions import VersionPolicy
from gateway.fleet.worker import AssignmentProgress
from synergai.domain import REMOVED, AssignmentId, Configuration, EngineName, Session, WorkerId
from synergai.errors import EngineUnusable, SynergaiError, Unavailable
from synergai.models.manifest import ManifestFile
from tests.cores import new_assignment
from tests.unit.gateway.deployment_world import (
    DEPLOYED,
    MODEL,
    MOVED,
    NET,
    OTHER,
    TOO_LARGE,
    TWO,
    WHOLE,
    World,
    deployed,
    stored,
    wanted,
)
from tests.unit.gateway.test_stages import stage
from tests.waiting import turns


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


async def test_stage_is_deployed_while_one_of_its_workers_drains() -> None:
    world = World()
    world.workers[WorkerId("c")].draining = True
    world.plans.append(wanted([("a", 0, 4), ("b", 4, 9)], [("c", 0, 4), ("b", 4, 9)]))
    await world.look(6)
    assert [each.state for each in world.controller.deployments()] == ["deployed"]


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
