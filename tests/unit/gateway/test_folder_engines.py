"""When engines of model directories are copied into the store, and when copies leave it."""

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest
from msgspec.structs import replace

from gateway.deployment.folders import FolderEngines, is_outdated
from gateway.deployment.planning import RETRY_S
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.worker import ConnectedWorker
from gateway.hub.store.storage import StoredVersion
from gateway.hub.store.store import EngineStore
from synergai.domain import REMOVED, Engine, EngineName, WorkerId
from synergai.errors import Overloaded, SynergaiError
from synergai.v1 import common_pb2
from tests.clocks import FakeClock
from tests.unit.gateway.conftest import make_worker
from tests.unit.gateway.deployment_world import NET, TOO_LARGE, WHOLE, stored
from tests.waiting import turns

A, B = WorkerId("a"), WorkerId("b")
COPY = stored(NET, ["worker=a"], pushed_by="worker a")
OTHER = "c" * 64


class World:
    """A store, and two workers that send what they are asked for, or cannot."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loaded = True
        self.versions: dict[str, StoredVersion] = {}
        self.catalogue = Catalogue()
        self.workers = {each: make_worker(each) for each in (A, B)}
        self.asked: list[tuple[str, str]] = []
        self.fails: SynergaiError | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.folders = FolderEngines(
            cast("EngineStore", self), self.catalogue, self.workers, self.bring, self.clock
        )

    def of(self, engine: EngineName) -> StoredVersion | None:
        return self.versions.get(engine)

    async def remove(self, engine: str, version: int) -> None:
        assert version == 1
        del self.versions[engine]

    async def bring(self, worker: ConnectedWorker, engine: EngineName) -> None:
        self.asked.append((worker.id, engine))
        await self.goes_on.wait()
        if self.fails is not None:
            raise self.fails
        self.versions[engine] = replace(COPY, engine=engine, pushed_by=f"worker {worker.id}")

    def offer(self, worker: str, engine: Engine) -> None:
        self.catalogue.update(WorkerId(worker), engine)

    def leave(self, worker: WorkerId) -> None:
        del self.workers[worker]
        self.catalogue.remove_worker(worker)

    async def look(self, times: int = 1) -> list[tuple[str, str]]:
        """Look some times; return what workers were asked for so far."""
        for _ in range(times):
            await self.folders.look([each for each in self.versions.values() if each.source])
            await turns(5)
            self.clock.now += 0.5
        return self.asked

    def told(self) -> Mapping[str, str]:
        """The engines that are to be copied, and why they are not yet."""
        return {each.engine: each.fault for each in self.folders.deployments()}


async def test_engine_that_fits_none_of_its_workers_is_copied_from_the_first_of_them() -> None:
    world = World()
    world.offer("b", TOO_LARGE)
    world.offer("a", replace(TOO_LARGE, digest=OTHER))
    assert world.told() == {NET: ""}
    assert await world.look(3) == [("b", NET)]
    assert world.told() == {}


@pytest.mark.parametrize(
    "offered",
    [
        WHOLE,
        replace(WHOLE, fault="it is corrupt"),
        replace(WHOLE, fault="it is being inspected", pending=True),
        replace(TOO_LARGE, backend="tensorflow"),
        replace(TOO_LARGE, routes="never"),
        replace(TOO_LARGE, name=EngineName("net.s0-4"), stage_of=OTHER),
    ],
    ids=["usable", "corrupt", "pending", "tensorflow", "never", "stage"],
)
async def test_engine_that_cannot_need_stages_is_not_copied(offered: Engine) -> None:
    world = World()
    world.offer("a", offered)
    assert await world.look(3) == []
    assert world.told() == {}


@pytest.mark.parametrize("fault", ["", "it is being inspected"])
async def test_engine_is_not_copied_while_another_worker_can_run_it_or_is_about_to_try(
    fault: str,
) -> None:
    world = World()
    world.offer("a", TOO_LARGE)
    world.offer("b", replace(WHOLE, fault=fault, pending=bool(fault)))
    assert await world.look(3) == []
    world.catalogue.withdraw(B, NET)
    assert await world.look(3) == [("a", NET)]


async def test_engine_of_a_lone_worker_is_not_copied_since_stages_need_a_second_one() -> None:
    world = World()
    world.leave(B)
    world.offer("a", TOO_LARGE)
    assert await world.look(3) == []
    assert "a second one" in world.told()[NET]


async def test_copy_that_has_failed_is_told_and_tried_again_later() -> None:
    world = World()
    world.fails = Overloaded("the store has no room")
    world.offer("a", TOO_LARGE)
    await world.look(3)
    assert world.told() == {NET: "the store has no room"}
    world.fails = None
    assert await world.look(3) == [("a", NET)]
    world.clock.now += RETRY_S
    assert await world.look(3) == [("a", NET), ("a", NET)]
    assert world.told() == {}


async def test_engines_are_copied_one_at_a_time() -> None:
    world = World()
    world.goes_on.clear()
    for name in ("one", "two"):
        world.offer("a", replace(TOO_LARGE, name=EngineName(name)))
    assert await world.look(3) == [("a", "one")]
    world.goes_on.set()
    await world.look(3)
    assert sorted(world.versions) == ["one", "two"]


async def test_engine_that_cannot_be_copied_holds_up_no_other_one() -> None:
    world = World()
    world.goes_on.clear()
    world.fails = Overloaded("it has stalled")
    for name in ("one", "two"):
        world.offer("a", replace(TOO_LARGE, name=EngineName(name)))
    for _ in range(4):  # each attempt takes longer than the pause behind it
        await world.look()
        world.clock.now += 2 * RETRY_S
        world.goes_on.set()
        await turns(5)
        world.goes_on.clear()
    assert [name for _, name in world.asked] == ["one", "two", "one", "two"]


async def test_copy_from_a_worker_that_leaves_goes_on_from_another_one() -> None:
    world = World()
    world.workers[WorkerId("c")] = make_worker("c")
    world.goes_on.clear()
    world.offer("a", TOO_LARGE)
    world.offer("b", TOO_LARGE)
    assert await world.look(2) == [("a", NET)]
    world.leave(A)
    assert await world.look(2) == [("a", NET), ("b", NET)]
    world.leave(B)
    await world.look(2)
    assert world.told() == {}


async def test_nothing_is_copied_before_the_store_is_loaded() -> None:
    world = World()
    world.loaded = False
    world.offer("a", TOO_LARGE)
    assert await world.look(3) == []
    assert world.told() == {}


OUTDATED = {
    "the same": ([TOO_LARGE], False),
    "usable": ([WHOLE], False),
    "pending": ([replace(WHOLE, digest="", fault="it is being inspected", pending=True)], False),
    "unreadable": ([replace(WHOLE, digest="", fault="it cannot be read")], False),
    "removed": ([replace(WHOLE, fault=REMOVED)], True),
    "absent": ([], True),
    "another": ([replace(TOO_LARGE, digest=OTHER)], True),
    "another, which cannot be loaded now": (
        [replace(WHOLE, digest=OTHER, fault="all engines used more than it may")],
        True,
    ),
    "another, and the same of another worker": (
        [replace(TOO_LARGE, digest=OTHER), TOO_LARGE],
        False,
    ),
    "another, usable": ([TOO_LARGE, replace(WHOLE, digest=OTHER)], True),
}


@pytest.mark.parametrize(("offers", "outdated"), OUTDATED.values(), ids=OUTDATED.keys())
def test_copy_is_outdated_once_its_file_is_gone_or_another_one_goes_before_it(
    offers: list[Engine],
    outdated: bool,
) -> None:
    world = World()
    for worker, engine in zip("ab", offers, strict=False):
        world.offer(worker, engine)
    assert is_outdated(COPY, world.catalogue, world.workers) == outdated


async def test_copy_stays_until_its_worker_is_there_and_has_it_no_more() -> None:
    world = World()
    world.versions[NET] = COPY
    worker = world.workers[A]
    world.leave(A)
    await world.look()
    assert NET in world.versions
    world.workers[A] = worker
    await world.look()
    assert NET not in world.versions


def test_what_a_worker_has_fetched_of_a_copy_does_not_keep_it() -> None:
    world = World()
    world.offer("b", WHOLE)
    assert not is_outdated(COPY, world.catalogue, world.workers)
    world.workers[B].placed["net", 1] = common_pb2.Placed(engine="net", version=1)
    assert is_outdated(COPY, world.catalogue, world.workers)


async def test_engine_whose_file_has_changed_is_copied_again() -> None:
    world = World()
    world.offer("a", TOO_LARGE)
    await world.look(3)
    world.offer("a", replace(TOO_LARGE, digest=OTHER))
    assert (await world.look(2))[:2] == [("a", NET), ("a", NET)]
