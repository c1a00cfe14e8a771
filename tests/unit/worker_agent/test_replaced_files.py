"""Loads of an engine whose files are replaced meanwhile."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

import worker_agent.hosts.pool
from synergai.domain import Configuration, Engine, EngineName, Session, TensorSpec
from synergai.models.directories import ModelDirectories
from tests.engines import new_engine
from tests.loaded_host import Starts
from tests.waiting import turns, until
from worker_agent.agent_settings import AgentSettings, WorkerSettings
from worker_agent.exchange import Exchange
from worker_agent.hosts.loads import LoadHung
from worker_agent.hosts.memory import HostMemory, TooLarge
from worker_agent.hosts.pool import HostPool
from worker_agent.hosts.process import HostProcess
from worker_agent.hosts.sessions import SessionChange
from worker_agent.hub_client.client import HubClient
from worker_agent.inventory import Inventory
from worker_agent.machine import Machine
from worker_agent.placements.reconciler import Reconciler
from worker_agent.served_engines import ModelDirectoryWatch, ServedEngines
from worker_agent.worker import LocalWorker

ENGINE = new_engine("digits", (TensorSpec("x", "FP32", (1,)),), (TensorSpec("y", "FP32", (1,)),))
SESSION = Session(ENGINE.name, Configuration(1))


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    monkeypatch.setattr(worker_agent.hosts.pool, "available_memory_bytes", lambda: 1 << 50)
    starts = Starts()
    monkeypatch.setattr(HostProcess, "start", starts.start)
    return starts


@pytest.fixture
def hosts(tmp_path: Path) -> HostPool:
    return HostPool(ModelDirectories(tmp_path), memory_bytes=1 << 40)


@pytest.mark.parametrize("name", ["load", "preload"])
async def test_load_does_not_share_the_cancelled_one_of_replaced_files(
    starts: Starts, hosts: HostPool, name: str
) -> None:
    load: Callable[[Session], asyncio.Task[HostProcess]] = getattr(hosts, name)
    old = load(SESSION)
    await starts.wait(1)
    hosts.retire(ENGINE.name)
    new = load(SESSION)
    assert new is not old
    assert load(SESSION) is new
    await starts.wait(2)
    await asyncio.wait([old])
    assert old.cancelled()
    assert load(SESSION) is new
    assert (SESSION in hosts._preloads) is (name == "preload")
    starts.complete()
    await new
    assert hosts.resident_sessions() == [SESSION]
    assert SESSION not in hosts._preloads


async def test_closing_waits_for_a_load_that_was_cancelled_before(
    starts: Starts, hosts: HostPool
) -> None:
    hosts.load(SESSION)
    await starts.wait(1)
    hosts.retire(ENGINE.name)
    hosts.load(SESSION)
    await hosts.close()
    assert starts.ended == len(starts.begun)


async def test_session_whose_file_is_damaged_is_not_evicted(
    starts: Starts, hosts: HostPool
) -> None:
    load = hosts.load(SESSION)
    await starts.wait(1)
    starts.complete()
    await load
    assert hosts.keep(ENGINE.name)
    hosts.memory_bytes = -1
    await hosts._evict(0)
    assert hosts.resident_sessions() == [SESSION]
    hosts.retire(ENGINE.name)
    assert not hosts.keep(ENGINE.name), "there is no session to keep"


async def test_session_serves_until_its_changed_files_are_loaded(
    starts: Starts, hosts: HostPool
) -> None:
    load = hosts.load(SESSION)
    await starts.wait(1)
    starts.complete()
    former = await load
    given_up = asyncio.create_task(hosts.replace(ENGINE.name))
    await starts.wait(2)
    given_up.cancel()
    await asyncio.wait([given_up])
    assert hosts.get_resident(SESSION) is former
    replacing = asyncio.create_task(hosts.replace(ENGINE.name))
    await starts.wait(3)
    assert hosts.get_resident(SESSION) is former
    starts.complete()
    await replacing
    assert hosts.get_resident(SESSION) not in (None, former)


async def test_changed_files_that_do_not_fit_beside_the_former_ones_wait_for_their_next_use(
    starts: Starts, hosts: HostPool
) -> None:
    load = hosts.load(SESSION)
    await starts.wait(1)
    starts.complete()
    await load
    hosts.memory_bytes, starts.error = -1, TooLarge("it was started")
    await hosts.replace(ENGINE.name)
    assert starts.sessions == [SESSION]
    assert hosts.get_resident(SESSION) is None


class Described:
    """Stands for the inventory; it describes the engine again as the test says."""

    def __init__(self) -> None:
        self.again = ENGINE
        self.later: list[EngineName] = []

    async def describe(self, *_: object) -> None:
        pass

    async def describe_again(
        self, _name: EngineName, on_described: Callable[[Engine], None]
    ) -> None:
        on_described(self.again)

    async def retry(self, on_described: Callable[[Engine], None]) -> None:
        on_described(self.again)

    def retry_later(self, name: EngineName) -> None:
        self.later.append(name)


class Reports:
    """A worker that is not connected, its engines, and what it reports to the gateway."""

    def __init__(self, directory: Path) -> None:
        settings = AgentSettings(
            gateway="127.0.0.1:1", worker=WorkerSettings(models=directory), state=directory
        )
        self.inventory = Described()
        self.engines = ServedEngines(
            settings.worker,
            cast("Inventory", self.inventory),
            cast("ModelDirectoryWatch", SimpleNamespace(run=nothing_happens)),
            lambda: None,
        )
        machine = SimpleNamespace(
            cores=1,
            memory=HostMemory(),
            exchange=Exchange(0, 1 << 20),
            instance="i",
            power=SimpleNamespace(mode=""),
            meter=None,
            configurations=settings.worker.configurations(),
        )
        self.changes: list[SessionChange] = []
        self.told: list[Engine] = []
        self.worker = LocalWorker(
            settings,
            cast("Machine", machine),
            cast("HubClient", self),
            on_engine_fault=self.engines.load_failed,
            describe_again=do_nothing,
            reconciler=cast("Reconciler", None),
        )
        self.hosts = self.worker.hosts
        self.engines.set_worker(self.worker)
        self.engines._set_engine(ENGINE)

    def send_session_changed(self, change: SessionChange) -> None:
        self.changes.append(change)

    def send_engine_changed(self, engine: Engine) -> None:
        self.told.append(engine)

    async def close(self) -> None:
        await self.engines.close()
        await self.worker.close()


async def do_nothing(_name: EngineName) -> None:
    pass


async def nothing_happens(*_: object) -> None:
    await turns()


@pytest.fixture
async def reports(tmp_path: Path) -> AsyncGenerator[Reports]:
    reports = Reports(tmp_path)
    yield reports
    await reports.close()


@pytest.mark.parametrize("preload", [False, True])
async def test_ordered_load_begins_again_with_the_new_files(
    starts: Starts, reports: Reports, *, preload: bool
) -> None:
    reports.worker.load_session(SESSION, preload=preload, limit_s=math.inf)
    await starts.wait(1)
    reports.worker.hosts.retire(ENGINE.name)
    await starts.wait(2)
    starts.complete()
    await until(lambda: bool(reports.changes))
    assert [(each.session, each.resident) for each in reports.changes] == [(SESSION, True)]


async def test_ordered_load_of_an_engine_that_is_removed_fails(
    starts: Starts, reports: Reports
) -> None:
    reports.worker.load_session(SESSION, preload=False, limit_s=math.inf)
    await starts.wait(1)
    reports.worker.hosts.retire(ENGINE.name)
    reports.worker.remove_engine(replace(ENGINE, fault="it was removed"))
    await until(lambda: bool(reports.changes))
    assert "it was removed" in str(reports.changes[0].error)
    assert len(starts.begun) == 1


async def test_engine_that_a_load_finds_too_large_is_told_to_be(
    starts: Starts, reports: Reports
) -> None:
    reports.worker.load_session(SESSION, preload=False, limit_s=math.inf)
    await starts.wait(1)
    starts.begun[-1].set_exception(TooLarge("it used 300 MB"))
    await until(lambda: bool(reports.told))
    assert [each.too_large for each in reports.told] == [True]


async def test_engine_that_is_removed_is_no_longer_too_large(reports: Reports) -> None:
    reports.engines._set_engine(replace(ENGINE, fault="it used 300 MB", too_large=True))
    reports.engines._engine_changed(ENGINE.name, None)
    assert [(each.fault, each.too_large) for each in reports.told] == [
        ("it was removed from the worker", False)
    ]


async def test_ordered_load_that_is_cancelled_by_closing_does_not_begin_again(
    starts: Starts, reports: Reports
) -> None:
    reports.worker.load_session(SESSION, preload=False, limit_s=math.inf)
    await starts.wait(1)
    await reports.worker.hosts.close()
    await turns(5)
    assert len(starts.begun) == 1
    assert reports.changes == []


async def on_request(reports: Reports) -> None:
    await reports.engines.describe_again(ENGINE.name)


async def by_retry(reports: Reports) -> None:
    await reports.engines.track()


@pytest.fixture
async def former(starts: Starts, reports: Reports) -> Reports:
    """A worker on which the former files of its engine serve: the changed ones do not load."""
    load = reports.hosts.load(SESSION)
    await starts.wait(1)
    starts.complete()
    await load
    reports.engines._engine_changed(ENGINE.name, replace(ENGINE, fault="it was killed"))
    reports.told.clear()
    return reports


@pytest.mark.parametrize("load_again", [on_request, by_retry])
async def test_former_files_serve_on_if_the_changed_ones_fail_again(
    former: Reports, load_again: Callable[[Reports], Coroutine[Any, Any, None]]
) -> None:
    former.inventory.again = replace(ENGINE, fault="it was killed again")
    await load_again(former)
    [engine] = former.told
    assert engine.fault == ""
    assert [each.reason for each in engine.unused_variants] == ["it was killed again"]


@pytest.mark.parametrize("load_again", [on_request, by_retry])
async def test_former_files_are_replaced_once_the_changed_ones_load_again(
    starts: Starts,
    former: Reports,
    load_again: Callable[[Reports], Coroutine[Any, Any, None]],
) -> None:
    host, changed = former.hosts.get_resident(SESSION), replace(ENGINE, digest="changed")
    former.inventory.again = changed
    await load_again(former)
    await starts.wait(2)
    assert former.told == []
    starts.complete()
    await until(lambda: former.told == [changed])
    assert former.hosts.get_resident(SESSION) not in (None, host)


async def test_engine_that_fails_to_load_in_service_is_loaded_again(
    starts: Starts, former: Reports
) -> None:
    former.hosts.retire(ENGINE.name)
    load = former.hosts.load(SESSION)
    await starts.wait(2)
    starts.begun[-1].set_exception(LoadHung("it was not loaded within 300 s"))
    await asyncio.wait([load])
    assert former.inventory.later == [ENGINE.name]
    assert [each.fault for each in former.told] == [
        "it was not loaded within 300 s; it is loaded again within an hour"
    ]
