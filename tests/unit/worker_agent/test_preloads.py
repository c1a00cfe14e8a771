"""Preloads on a worker: they evict nothing and step aside."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

import worker_agent.hosts.pool
import worker_agent.hosts.preloads
from synergai.domain import Configuration, EngineName, Session
from synergai.errors import SynergaiError
from synergai.models.directories import ModelDirectories
from tests.loaded_host import Starts
from tests.waiting import until
from worker_agent.hosts.memory import HostMemory
from worker_agent.hosts.pool import HostPool
from worker_agent.hosts.preloads import Preload, PreloadAborted
from worker_agent.hosts.process import HostProcess
from worker_agent.hosts.sessions import SessionChange

SESSION = Session(EngineName("engine"), Configuration(1))


class Host:
    """A host that loads, without a process."""

    def __init__(self) -> None:
        self.pid = 0
        self.calls: list[str] = []
        self.killed: SynergaiError | None = None

    def suspend(self) -> bool:
        self.calls.append("suspend")
        return True

    def resume(self) -> None:
        self.calls.append("resume")

    def kill(self, reason: str, error: SynergaiError) -> None:
        self.calls.append(reason)
        self.killed = error


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_agent.hosts.preloads, "CHECK_S", 0.0)


async def test_a_preload_is_suspended_while_the_worker_has_other_work() -> None:
    busy = True
    host = Host()
    load = Preload(lambda: busy)
    load.watch(cast("HostProcess", host))
    await until(lambda: host.calls == ["suspend"])
    busy = False
    await until(lambda: host.calls == ["suspend", "resume"])
    await load.end()
    assert host.calls == ["suspend", "resume"]


@pytest.mark.parametrize("how", ["needed", "ended"])
async def test_a_suspended_load_goes_on_once_it_is_needed(how: str) -> None:
    host = Host()
    load = Preload(lambda: True)
    load.watch(cast("HostProcess", host))
    await until(lambda: host.calls == ["suspend"])
    if how == "needed":
        load.needed = True
        await until(lambda: len(host.calls) == 2)
    await load.end()
    assert host.calls == ["suspend", "resume"]


@pytest.mark.parametrize(
    ("of_variant", "limit"), [(False, "PATIENCE_S"), (True, "VARIANT_PATIENCE_S")]
)
async def test_a_load_that_would_wait_for_long_is_aborted(
    monkeypatch: pytest.MonkeyPatch, *, of_variant: bool, limit: str
) -> None:
    monkeypatch.setattr(worker_agent.hosts.preloads, "CHECK_S", 1e-6)
    monkeypatch.setattr(worker_agent.hosts.preloads, limit, 1e-5)
    host = Host()
    load = Preload(lambda: True, of_variant=of_variant)
    load.watch(cast("HostProcess", host))
    await until(lambda: host.killed is not None)
    await load.end()
    assert isinstance(host.killed, PreloadAborted)
    assert not host.killed.no_room


@pytest.mark.parametrize("needed", [False, True])
async def test_a_load_that_hangs_is_ended_whether_it_is_needed_or_not(*, needed: bool) -> None:
    host = Host()
    load = Preload(lambda: False, limit_s=1e-5)
    load.needed = needed
    load.watch(cast("HostProcess", host))
    await until(lambda: host.killed is not None)
    await load.end()
    assert isinstance(host.killed, PreloadAborted)


class Pool:
    """A pool of hosts that load until the test ends that, or cannot be started at all."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        models: Path,
        *,
        memory_bytes: int = 1 << 40,
        limit: int = 0,
        error: SynergaiError | None = None,
    ) -> None:
        self.starts = Starts(error)
        monkeypatch.setattr(HostProcess, "start", self.starts.start)
        self.changes: list[SessionChange] = []
        self.hosts = HostPool(
            ModelDirectories(models),
            memory_bytes=memory_bytes,
            memory=HostMemory(limit),
            on_change=self.changes.append,
        )


@pytest.mark.parametrize(
    ("memory_bytes", "limit", "available"),
    [(1, 0, 1 << 40), (1 << 40, 1, 1 << 40), (1 << 40, 0, 1 << 20)],
    ids=["budget", "limit", "machine"],
)
async def test_a_preload_without_room_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory_bytes: int, limit: int, available: int
) -> None:
    monkeypatch.setattr(worker_agent.hosts.pool, "available_memory_bytes", lambda: available)
    run = Pool(monkeypatch, tmp_path, memory_bytes=memory_bytes, limit=limit)
    with pytest.raises(PreloadAborted):
        await run.hosts.preload(SESSION)
    assert run.starts.sessions == []
    assert run.changes == [SessionChange(SESSION, resident=False, no_room=True)]


async def test_a_preload_that_outgrows_the_memory_is_aborted_and_its_size_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Pool(monkeypatch, tmp_path, memory_bytes=1 << 30)
    sizes = [1 << 29]
    for module in (worker_agent.hosts.pool, worker_agent.hosts.preloads):
        monkeypatch.setattr(module, "rss_bytes", lambda _: sizes[0])
    loading = run.hosts.preload(SESSION)
    await run.starts.wait(1)
    await run.hosts.check_memory()
    assert not loading.done()
    sizes[0] = 1 << 31
    await run.hosts.check_memory()
    with pytest.raises(PreloadAborted):
        await loading
    assert run.changes == [SessionChange(SESSION, resident=False, no_room=True, size=1 << 31)]


async def test_a_load_that_was_aborted_is_begun_again_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Pool(monkeypatch, tmp_path, error=PreloadAborted("suspended for too long"))
    first = run.hosts.preload(SESSION)
    assert run.hosts.load(SESSION) is first
    with pytest.raises(PreloadAborted):
        await first
    assert run.starts.sessions == [SESSION, SESSION]
    assert run.changes == []  # the fake aborts even what is needed


async def test_a_preload_ends_for_a_switch_of_the_power_mode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Pool(monkeypatch, tmp_path)
    loading = run.hosts.preload(SESSION)
    await run.starts.wait(1)
    run.hosts.end_preloads("the power mode changes")
    with pytest.raises(PreloadAborted):
        await loading
    assert run.changes == [SessionChange(SESSION, resident=False)]


async def test_a_load_that_is_aborted_before_its_host_is_started_is_killed_then() -> None:
    host = Host()
    load = Preload(lambda: False)
    load.abort("the power mode changes", no_room=False)
    with pytest.raises(PreloadAborted):
        load.check()
    load.watch(cast("HostProcess", host))
    await load.end()
    assert isinstance(host.killed, PreloadAborted)


@pytest.mark.parametrize("launched", [False, True], ids=["starting", "loading"])
async def test_a_variant_that_is_needed_does_not_wait_for_another_one_preloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, launched: bool
) -> None:
    run = Pool(monkeypatch, tmp_path)
    ahead, needed = (
        Session(SESSION.engine, Configuration(1, variant=each)) for each in ("small", "large")
    )
    run.starts.launch.clear()
    first = run.hosts.preload(ahead)
    await until(lambda: run.starts.sessions == [ahead])
    if launched:
        run.starts.launch.set()
        await run.starts.wait(1)
    second = run.hosts.load(needed)
    run.starts.launch.set()
    with pytest.raises(PreloadAborted):
        await first
    await run.starts.wait(2)
    run.starts.complete()
    await second
    assert run.starts.sessions == [ahead, needed]


async def test_what_was_preloaded_is_evicted_before_what_was_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Pool(monkeypatch, tmp_path)
    ahead = Session(EngineName("ahead"), Configuration(1))
    for count, begin, session in ((1, run.hosts.load, SESSION), (2, run.hosts.preload, ahead)):
        load = begin(session)
        await run.starts.wait(count)
        run.starts.complete()
        await load
    assert run.hosts.resident_sessions() == [SESSION, ahead]
    run.hosts.get_resident(ahead)
    assert run.hosts.resident_sessions() == [ahead, SESSION]


async def test_a_load_that_was_just_aborted_is_not_what_a_query_gets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Pool(monkeypatch, tmp_path, memory_bytes=1, error=PreloadAborted("suspended"))
    monkeypatch.setattr(worker_agent.hosts.pool, "available_memory_bytes", lambda: 1 << 40)
    over: asyncio.Future[asyncio.Task[HostProcess]] = asyncio.get_running_loop().create_future()

    async def load_when_over() -> None:
        await until(lambda: first.done())
        over.set_result(run.hosts.load(SESSION))

    waiting = asyncio.create_task(load_when_over())
    first = run.hosts.preload(SESSION)
    await waiting
    with pytest.raises(PreloadAborted, match="not free"):
        await first
    second = await over
    assert second is not first
    with pytest.raises(PreloadAborted, match="suspended"):  # by the fake, which was started
        await second
    assert run.starts.sessions == [SESSION]
    assert not run.hosts._loads
