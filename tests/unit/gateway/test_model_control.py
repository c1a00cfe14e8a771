"""Loading and unloading of engines across the fleet; the test stands in for the hub."""

import asyncio

import pytest
from msgspec.structs import replace

from gateway.fleet.worker import ConnectedWorker
from gateway.hub.model_control import ModelControl
from synergai import errors
from synergai.core.scheduling.events import Load
from synergai.domain import Configuration, Engine, EngineName, Session
from synergai.profiles.dictionary import ConfigurationDictionary
from synergai.runtime.send_queue import SendQueue
from synergai.wire.converters import session_from_proto
from tests.cores import new_entry
from tests.unit.gateway.conftest import GatewayHarness

ECHO = EngineName("echo")
SESSION = Session(ECHO, Configuration(1))


class Fleet:
    """A gateway harness with workers, and model control over them."""

    def __init__(self, harness: GatewayHarness, dictionary: ConfigurationDictionary) -> None:
        self.harness = harness
        self.control = ModelControl(
            harness.dispatcher.workers, harness.catalogue, dictionary, harness.journal
        )

    def add_worker(self, worker_id: str = "w1") -> ConnectedWorker:
        worker: ConnectedWorker = self.harness.add_worker(worker_id)
        worker.control = SendQueue(100)
        return worker

    async def start_load(self, on: str = "", budget_s: float | None = None) -> asyncio.Task[None]:
        task = asyncio.create_task(self.control.load(ECHO, on.split(), budget_s))
        await asyncio.sleep(0)
        return task

    def set_resident(self, worker: ConnectedWorker) -> None:
        """Report the engine as resident on a worker, as the hub does."""
        worker.sessions.add(SESSION)
        self.control.on_session_changed(worker, SESSION, resident=True)


@pytest.fixture
def fleet(harness: GatewayHarness) -> Fleet:
    return Fleet(harness, ConfigurationDictionary())


def orders(worker: ConnectedWorker) -> list[tuple[str, Session]]:
    """Return the orders on the worker's control stream since the last call."""
    found: list[tuple[str, Session]] = []
    for message in worker.control.get_batch_nowait():
        kind = message.WhichOneof("message") or ""
        found.append((kind, session_from_proto(getattr(message, kind).session)))
    return found


async def error_of(task: asyncio.Task[None]) -> errors.SynergaiError:
    with pytest.raises(errors.SynergaiError) as caught:
        await task
    return caught.value


async def test_load_is_ordered_from_all_workers_and_returns_when_the_first_is_ready(
    fleet: Fleet,
) -> None:
    first, second = fleet.add_worker("w1"), fleet.add_worker("w2")
    task = await fleet.start_load()
    assert orders(first) == orders(second) == [("load", SESSION)]
    assert fleet.control.is_loading(ECHO)
    fleet.set_resident(second)
    await task
    assert not fleet.control.is_loading(ECHO)


async def test_loading_all_versions_puts_those_back_that_cannot_run_now(fleet: Fleet) -> None:
    worker = fleet.add_worker()
    second = EngineName("echo/2")
    faulty = replace(worker.engines[ECHO], name=second, version="2", fault="truncated")
    fleet.harness.catalogue.update(worker.id, faulty)
    for engine in (ECHO, second):
        await fleet.control.unload(engine)
    task = asyncio.create_task(fleet.control.load_any([ECHO, second]))
    await asyncio.sleep(0)
    fleet.set_resident(worker)
    await task
    assert not fleet.harness.catalogue.unloaded
    fleet.harness.catalogue.update(worker.id, replace(faulty, fault=""))
    assert fleet.harness.catalogue.serves(second)


async def test_loading_all_versions_fails_if_one_stays_unloaded(fleet: Fleet) -> None:
    worker = fleet.add_worker()
    second = EngineName("echo/2")
    other = replace(worker.engines[ECHO], name=second, version="2")
    fleet.harness.catalogue.update(worker.id, other)  # which the worker does not run any more
    await fleet.control.unload(second)
    task = asyncio.create_task(fleet.control.load_any([ECHO, second]))
    await asyncio.sleep(0)
    fleet.set_resident(worker)
    with pytest.raises(errors.Unavailable, match="echo/2"):
        await task


async def test_load_waits_until_the_engine_is_inspected(fleet: Fleet) -> None:
    worker = fleet.add_worker()
    engine = worker.engines[ECHO]
    pending = replace(engine, fault="it is being inspected", pending=True)
    fleet.harness.catalogue.update(worker.id, pending)
    with pytest.raises(errors.DeadlineExceeded, match="still being inspected"):
        await fleet.control.load(ECHO, budget_s=0.0)
    task = await fleet.start_load()
    assert orders(worker) == []
    fleet.harness.catalogue.update(worker.id, engine)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert orders(worker) == [("load", SESSION)]
    fleet.set_resident(worker)
    await task


async def test_load_of_a_resident_engine_returns_at_once(fleet: Fleet) -> None:
    worker = fleet.add_worker()
    worker.sessions.add(SESSION)
    await fleet.control.load(ECHO)
    assert orders(worker) == []


async def test_load_fails_once_all_workers_have_failed(fleet: Fleet) -> None:
    first, second = fleet.add_worker("w1"), fleet.add_worker("w2")
    task = await fleet.start_load()
    fleet.control.on_session_changed(first, SESSION, resident=False, fault="out of memory")
    await asyncio.sleep(0)
    assert not task.done()
    fleet.control.on_session_changed(second, SESSION, resident=False, fault="truncated file")
    error = await error_of(task)
    assert isinstance(error, errors.EngineUnusable)
    assert "'w2': truncated file" in str(error)


async def test_load_on_some_workers_is_ordered_from_no_others(fleet: Fleet) -> None:
    workers = [fleet.add_worker(name) for name in ("w1", "w2", "w3")]
    task = await fleet.start_load("w1")
    other = await fleet.start_load("w1 w2")
    assert [orders(worker) for worker in workers] == [[("load", SESSION)], [("load", SESSION)], []]
    fleet.set_resident(workers[1])
    await asyncio.gather(task, other)


async def test_load_of_an_engine_that_is_faulty_everywhere_is_tried_again(fleet: Fleet) -> None:
    worker = fleet.add_worker()
    good = worker.engines[ECHO]

    def describe(engine: Engine) -> None:
        worker.offered[ECHO] = worker.engines[ECHO] = engine
        fleet.harness.catalogue.update(worker.id, engine)

    describe(replace(good, fault="its load hung"))
    task = await fleet.start_load()
    assert orders(worker) == [("load", SESSION)]
    fleet.control.on_session_changed(worker, SESSION, resident=False, fault="it hung again")
    error = await error_of(task)
    assert isinstance(error, errors.EngineUnusable)
    assert "it hung again" in str(error)
    task = await fleet.start_load()
    describe(good)
    fleet.set_resident(worker)
    await task


async def test_engine_that_no_worker_may_serve_is_not_loaded(fleet: Fleet) -> None:
    worker = fleet.add_worker()
    worker.engines[ECHO] = replace(worker.engines[ECHO], fault="not allowed here")
    fleet.harness.catalogue.update(worker.id, worker.engines[ECHO])
    with pytest.raises(errors.EngineUnusable, match="not allowed here"):
        await fleet.control.load(ECHO)
    assert orders(worker) == []


async def test_load_continues_after_its_call_has_timed_out(
    fleet: Fleet,
) -> None:
    worker = fleet.add_worker()
    await fleet.control.unload(ECHO)
    task = await fleet.start_load(budget_s=0.0)
    assert isinstance(await error_of(task), errors.DeadlineExceeded)
    again = await fleet.start_load()
    assert orders(worker) == [("load", SESSION)]
    fleet.set_resident(worker)
    await again
    assert fleet.harness.catalogue.find(ECHO).name == ECHO


async def test_load_without_a_caller_may_fail_silently(fleet: Fleet) -> None:
    worker = fleet.add_worker()
    task = await fleet.start_load(budget_s=0.0)
    await error_of(task)
    fleet.control.on_worker_left(worker)
    assert not fleet.control.is_loading(ECHO)


async def test_unknown_engine_can_be_neither_loaded_nor_unloaded(fleet: Fleet) -> None:
    with pytest.raises(errors.EngineNotFound):
        await fleet.control.load("nobody")
    with pytest.raises(errors.EngineNotFound):
        await fleet.control.unload("nobody")


async def test_unloaded_engine_is_out_of_service_until_it_is_loaded(fleet: Fleet) -> None:
    worker = fleet.add_worker()
    worker.sessions.add(SESSION)
    await fleet.control.unload(ECHO)
    assert orders(worker) == [("unload", SESSION)]
    with pytest.raises(errors.EngineUnloaded):
        fleet.harness.begin_request()
    with pytest.raises(errors.EngineUnloaded):
        fleet.harness.catalogue.check_known(ECHO)
    worker.sessions.clear()
    task = await fleet.start_load()
    with pytest.raises(errors.EngineUnloaded):
        fleet.harness.begin_request()
    fleet.set_resident(worker)
    await task
    assert not fleet.harness.begin_request().result.done()


async def test_worker_joining_with_an_unloaded_engine_leaves_it_out_of_service(
    fleet: Fleet,
) -> None:
    fleet.add_worker("w1")
    await fleet.control.unload(ECHO)
    fleet.add_worker("w2")
    with pytest.raises(errors.EngineUnloaded):
        fleet.harness.catalogue.find(ECHO)


async def test_load_does_not_switch_the_power_mode(harness: GatewayHarness) -> None:
    slow, fast = Configuration(1, "10W"), Configuration(1, "30W")
    entries = [new_entry(ECHO, "test", qps, c) for c, qps in ((slow, 10.0), (fast, 20.0))]
    fleet = Fleet(harness, ConfigurationDictionary(entries))
    worker = fleet.add_worker()
    worker.configurations, worker.power.mode = (slow, fast), "10W"
    task = await fleet.start_load()
    assert orders(worker) == [("load", Session(ECHO, slow))]
    fleet.set_resident(worker)
    await task


async def test_unloading_fails_a_load_in_progress(fleet: Fleet) -> None:
    fleet.add_worker()
    task = await fleet.start_load()
    await fleet.control.unload(ECHO)
    assert isinstance(await error_of(task), errors.EngineUnusable)
    with pytest.raises(errors.EngineUnloaded):
        fleet.harness.catalogue.find(ECHO)


FIRST, SECOND = (Session(EngineName(name), Configuration(1)) for name in ("first", "second"))


async def test_the_order_to_preload_says_so(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    worker.control = SendQueue(100)
    harness.dispatcher._execute(Load(worker.id, FIRST, 3.0), 0.0)
    harness.catalogue.add_known([SECOND.engine])
    harness.catalogue.unload(SECOND.engine)
    harness.dispatcher._execute(Load(worker.id, SECOND, 3.0), 0.0)
    [order] = worker.control.get_batch_nowait()
    assert order.load.preload
    assert session_from_proto(order.load.session) == FIRST
