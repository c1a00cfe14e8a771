"""Loading and unloading engines over the fleet, with the hub's part played by the test."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.hub.model_control import ModelControl
from gateway.send_queue import Outbox
from synergai.domain import Configuration, EngineName, Session, WorkerClass
from synergai.errors import (
    DeadlineExceeded,
    EngineNotFound,
    EngineUnloaded,
    EngineUnusable,
    SynergaiError,
    Unavailable,
)
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from synergai.protocol.converters import session_from_proto

if TYPE_CHECKING:
    from gateway.fleet.worker import ConnectedWorker

ECHO = EngineName("echo")
SESSION = Session(ECHO, Configuration(1))


class Fleet:
    """An office with workers, and model control over them."""

    def __init__(self, office: Any, dictionary: ConfigurationDictionary) -> None:
        self.office = office
        self.control = ModelControl(office.dispatcher, office.catalogue, dictionary, office.journal)

    def join(self, worker_id: str = "w1") -> ConnectedWorker:
        worker: ConnectedWorker = self.office.join(worker_id)
        worker.control = Outbox(100)
        return worker

    async def loading(self, budget_s: float | None = None) -> asyncio.Task[None]:
        """A load that has begun."""
        task = asyncio.create_task(self.control.load(ECHO, budget_s))
        await asyncio.sleep(0)
        return task

    def resident(self, worker: ConnectedWorker) -> None:
        """The worker has loaded the engine, as the hub would tell."""
        worker.sessions.add(SESSION)
        self.control.session_changed(worker, SESSION, resident=True)


@pytest.fixture
def fleet(office: Any) -> Fleet:
    return Fleet(office, ConfigurationDictionary())


def orders(worker: ConnectedWorker) -> list[tuple[str, Session]]:
    """What the worker was told on its control stream since last asked."""
    told: list[tuple[str, Session]] = []
    for message in worker.control.take_nowait():
        kind = message.WhichOneof("message") or ""
        told.append((kind, session_from_proto(getattr(message, kind).session)))
    return told


async def failure_of(task: asyncio.Task[None]) -> SynergaiError:
    with pytest.raises(SynergaiError) as caught:
        await task
    return caught.value


async def test_load_is_ordered_of_every_worker_and_answers_when_the_first_is_ready(
    fleet: Fleet,
) -> None:
    first, second = fleet.join("w1"), fleet.join("w2")
    task = await fleet.loading()
    assert orders(first) == orders(second) == [("load", SESSION)]
    assert fleet.control.is_loading(ECHO)
    fleet.resident(second)
    await task
    assert not fleet.control.is_loading(ECHO)


async def test_load_of_what_is_resident_answers_at_once(fleet: Fleet) -> None:
    worker = fleet.join()
    worker.sessions.add(SESSION)
    await fleet.control.load(ECHO)
    assert orders(worker) == []


async def test_load_chooses_the_fastest_known_configuration(office: Any) -> None:
    slow, fast = Configuration(1), Configuration(2)
    entries = [
        ProfileEntry(engine=ECHO, worker_class=WorkerClass("test"), configuration=c, qps=qps)
        for c, qps in ((slow, 10.0), (fast, 20.0), (Configuration(4), 99.0))
    ]
    fleet = Fleet(office, ConfigurationDictionary(entries))
    worker = fleet.join()
    worker.configurations = (fast, slow)
    task = await fleet.loading()
    assert orders(worker) == [("load", Session(ECHO, fast))]
    fleet.resident(worker)
    await task


async def test_load_fails_once_no_worker_is_left_that_could(fleet: Fleet) -> None:
    first, second = fleet.join("w1"), fleet.join("w2")
    task = await fleet.loading()
    fleet.control.session_changed(first, SESSION, resident=False, fault="out of memory")
    await asyncio.sleep(0)
    assert not task.done()
    fleet.control.session_changed(second, SESSION, resident=False, fault="truncated file")
    error = await failure_of(task)
    assert isinstance(error, EngineUnusable)
    assert "'w2': truncated file" in str(error)


async def test_load_fails_when_the_last_worker_leaves(fleet: Fleet) -> None:
    worker = fleet.join()
    task = await fleet.loading()
    fleet.control.left(worker)
    assert isinstance(await failure_of(task), Unavailable)


async def test_load_that_takes_longer_than_the_call_may_says_so_and_goes_on(
    fleet: Fleet,
) -> None:
    worker = fleet.join()
    await fleet.control.unload(ECHO)
    task = await fleet.loading(budget_s=0.0)
    assert isinstance(await failure_of(task), DeadlineExceeded)
    again = await fleet.loading()
    assert orders(worker) == [("load", SESSION)]
    fleet.resident(worker)
    await again
    assert fleet.office.catalogue.find(ECHO)


async def test_load_that_nobody_waits_for_any_more_may_fail_in_silence(fleet: Fleet) -> None:
    worker = fleet.join()
    task = await fleet.loading(budget_s=0.0)
    await failure_of(task)
    fleet.control.left(worker)
    assert not fleet.control.is_loading(ECHO)


async def test_engine_unloaded_at_the_moment_it_was_loaded_stays_unloaded(fleet: Fleet) -> None:
    worker = fleet.join()
    task = await fleet.loading()
    fleet.resident(worker)
    await fleet.control.unload(ECHO)
    await task
    with pytest.raises(EngineUnloaded):
        fleet.office.catalogue.find(ECHO)


async def test_what_nobody_has_can_be_neither_loaded_nor_unloaded(fleet: Fleet) -> None:
    with pytest.raises(EngineNotFound):
        await fleet.control.load("nobody")
    with pytest.raises(EngineNotFound):
        await fleet.control.unload("nobody")


async def test_unloaded_engine_is_out_of_service_until_it_is_loaded(fleet: Fleet) -> None:
    worker = fleet.join()
    worker.sessions.add(SESSION)
    await fleet.control.unload(ECHO)
    assert orders(worker) == [("unload", SESSION)]
    with pytest.raises(EngineUnloaded):
        fleet.office.begin()
    with pytest.raises(EngineUnloaded):
        fleet.office.catalogue.check_known(ECHO)
    worker.sessions.clear()
    task = await fleet.loading()
    with pytest.raises(EngineUnloaded):
        fleet.office.begin()
    fleet.resident(worker)
    await task
    assert fleet.office.begin()


async def test_worker_that_brings_an_unloaded_engine_does_not_put_it_back_into_service(
    fleet: Fleet,
) -> None:
    fleet.join("w1")
    await fleet.control.unload(ECHO)
    fleet.join("w2")
    with pytest.raises(EngineUnloaded):
        fleet.office.catalogue.find(ECHO)


async def test_worker_is_reminded_of_what_it_could_not_drop(fleet: Fleet) -> None:
    worker = fleet.join()
    worker.sessions.add(SESSION)
    fleet.control.remind(worker)
    assert orders(worker) == []
    await fleet.control.unload(ECHO)
    fleet.control.remind(worker)
    assert orders(worker) == [("unload", SESSION)] * 2
    worker.sessions.clear()
    fleet.control.remind(worker)
    assert orders(worker) == []


async def test_what_is_being_loaded_again_is_not_dropped(fleet: Fleet) -> None:
    worker = fleet.join()
    await fleet.control.unload(ECHO)
    task = await fleet.loading()
    fleet.resident(worker)
    fleet.control.remind(worker)
    await task
    assert orders(worker) == [("load", SESSION)]


async def test_load_leaves_the_power_mode_in_force_as_it_is(office: Any) -> None:
    slow, fast = Configuration(1, "10W"), Configuration(1, "30W")
    entries = [
        ProfileEntry(engine=ECHO, worker_class=WorkerClass("test"), configuration=c, qps=qps)
        for c, qps in ((slow, 10.0), (fast, 20.0))
    ]
    fleet = Fleet(office, ConfigurationDictionary(entries))
    worker = fleet.join()
    worker.configurations, worker.power.mode = (slow, fast), "10W"
    task = await fleet.loading()
    assert orders(worker) == [("load", Session(ECHO, slow))]
    fleet.resident(worker)
    await task


async def test_unloading_ends_a_load_under_way(fleet: Fleet) -> None:
    fleet.join()
    task = await fleet.loading()
    await fleet.control.unload(ECHO)
    assert isinstance(await failure_of(task), EngineUnusable)
    with pytest.raises(EngineUnloaded):
        fleet.office.catalogue.find(ECHO)
