"""Pool of real engine hosts: crashes, hangs, eviction."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

import worker_agent.hosts.launch
import worker_agent.hosts.memory
import worker_agent.hosts.pool
import worker_agent.hosts.sessions
from synergai.domain import Configuration, EngineName, Fault, Outcome, Session
from synergai.errors import EngineUnusable, Unavailable
from synergai.models.directories import ModelDirectories
from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from tests.emulated_engines import write_emulated_engines
from tests.integration.worker_agent.conftest import Changes, Pools
from tests.waiting import until
from worker_agent.describer import inspect_in_host
from worker_agent.hosts.loads import LoadCrashed
from worker_agent.hosts.memory import CrowdedOut, HostMemory, TooLarge
from worker_agent.hosts.pool import HostPool
from worker_agent.hosts.preloads import Preload, PreloadAborted
from worker_agent.hosts.process import HostProcess
from worker_agent.ipc import RunEnded, Tally

TWICE = Session(EngineName("twice"), Configuration(1))
TWICE_2 = Session(EngineName("twice"), Configuration(2))
LABELLED = Session(EngineName("labelled"), Configuration(1))
FOREVER = 10**12
HANG_TIMEOUT_S = 1.0


def run_samples(host: HostProcess, count: int) -> asyncio.Future[RunEnded]:
    ended: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
    host.run_samples(0, count, lambda _: None, ended.set_result)
    return ended


def shared_memory() -> set[int]:
    """Inodes of the arenas that this process has open; they are in no directory."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the directory
            if "synergai-arena" in str(descriptor.readlink()):
                inodes.add(descriptor.stat().st_ino)
    return inodes


async def test_closing_host_accepts_no_runs(models: Path) -> None:
    host = await HostProcess.start(models, TWICE)
    closing = asyncio.create_task(host.close())
    await asyncio.sleep(0)
    assert host.is_closed
    assert (await run_samples(host, 1)).fault is Fault.HOST_DIED
    await closing


@pytest.fixture
def pool(models: Path, new_pool: Pools) -> Pools:
    return partial(new_pool, models)


@pytest.fixture
def hosts(pool: Pools) -> HostPool:
    return pool()


@pytest.fixture
def impatient(pool: Pools) -> HostPool:
    """Hosts that are killed once they were silent for `HANG_TIMEOUT_S`."""
    return pool(hang_timeout_s=HANG_TIMEOUT_S)


async def test_range_reports_progress_and_stops_between_two_queries(hosts: HostPool) -> None:
    host = await hosts.load(TWICE)
    ended: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
    progress: asyncio.Queue[Tally] = asyncio.Queue()
    run = host.run_samples(0, FOREVER, progress.put_nowait, ended.set_result)
    first, second = await progress.get(), await progress.get()
    host.stop_run(run)
    last = await ended
    assert last.outcome is Outcome.STOPPED
    assert 0 < first.done < second.done <= last.tally.done < FOREVER
    assert last.tally.compute_s >= second.compute_s > first.compute_s


async def test_merged_quick_queries_are_answered_in_order(
    hosts: HostPool,
) -> None:
    host = await hosts.load(TWICE)
    tensor = ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 2])
    answers: asyncio.Queue[str] = asyncio.Queue()

    def note(ended: RunEnded) -> None:
        answers.put_nowait(ModelInferResponse.FromString(bytes(ended.response)).id)

    received: list[str] = []
    for number in range(200):
        while not host.has_room(50):
            received.append(await answers.get())
        request = ModelInferRequest(id=str(number), inputs=[tensor], raw_input_contents=[bytes(8)])
        host.run_query(request.SerializeToString(), note)
    while not host.is_idle or not answers.empty():
        received.append(await answers.get())
    assert received == [str(number) for number in range(200)]


async def test_killed_host_ends_its_runs_and_is_loaded_again(
    hosts: HostPool, changes: Changes
) -> None:
    host = await hosts.load(TWICE)
    running, waiting = run_samples(host, FOREVER), run_samples(host, 1)
    os.kill(host.pid, signal.SIGKILL)
    for ended in (await running, await waiting):
        assert (ended.outcome, ended.fault) == (Outcome.FAILED, Fault.HOST_DIED)
        assert ended.detail == "the engine host of 'twice' died by signal 9"
    assert hosts.get_resident(TWICE) is None
    again = await hosts.load(TWICE)
    assert (await run_samples(again, 3)).outcome is Outcome.COMPLETED
    assert changes.states() == [(TWICE, True), (TWICE, False), (TWICE, True)]


async def test_hung_host_is_killed(impatient: HostPool) -> None:
    host = await impatient.load(TWICE)
    ended = run_samples(host, FOREVER)
    os.kill(host.pid, signal.SIGSTOP)
    assert (await ended).detail == "the engine host of 'twice' hung and was killed"


async def test_host_that_is_stopped_while_it_loads_is_killed(pool: Pools) -> None:
    memory = HostMemory()
    hosts = pool(memory=memory, hang_timeout_s=HANG_TIMEOUT_S)
    loading = hosts.load(TWICE)
    await until(lambda: memory.hosts, 0.001)
    (host,) = memory.hosts
    os.kill(host.pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match="hung and was killed"):
        async with asyncio.timeout(60):
            await loading
    assert (await run_samples(await hosts.load(TWICE), 3)).outcome is Outcome.COMPLETED


async def test_host_that_is_idle_or_makes_progress_is_not_hung(tmp_path: Path) -> None:
    names = [EngineName("busy"), EngineName("idle")]
    models, _ = write_emulated_engines(tmp_path, dict.fromkeys(names, 0.01))
    hosts = HostPool(ModelDirectories(models), memory_bytes=1 << 40, hang_timeout_s=HANG_TIMEOUT_S)
    busy, idle = [await hosts.load(Session(name, Configuration(1))) for name in names]
    await run_samples(idle, 1)
    ended: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
    run = busy.run_samples(0, FOREVER, lambda _: None, ended.set_result)
    await asyncio.sleep(2 * HANG_TIMEOUT_S)
    busy.stop_run(run)
    assert (await ended).outcome is Outcome.STOPPED
    assert (await run_samples(idle, 1)).outcome is Outcome.COMPLETED
    await hosts.close()


async def test_broken_model_is_reported_and_other_sessions_load(
    hosts: HostPool, changes: Changes
) -> None:
    with pytest.raises(EngineUnusable, match="damaged"):
        await hosts.load(Session(EngineName("truncated"), Configuration(1)))
    (change,) = changes
    assert isinstance(change.error, EngineUnusable)
    assert not (await hosts.load(TWICE)).is_closed


@pytest.fixture
def hangup_ends_hosts() -> Iterator[None]:
    """Let hosts be ended by a hangup, even if the tests run behind ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_ends_hosts")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_load_ended_from_outside_is_no_crash_of_the_engine(
    models: Path, number: signal.Signals
) -> None:
    """A crash is remembered; the end of all processes of a service is none."""
    start = asyncio.create_task(HostProcess.start(models, TWICE))
    children: list[psutil.Process] = []
    while not children:
        await asyncio.sleep(0)
        children = psutil.Process().children()
    children[0].send_signal(number)
    with pytest.raises(Unavailable, match=f"died by signal {number:d} while loading") as raised:
        await start
    assert not isinstance(raised.value, LoadCrashed)


async def test_load_times_out(models: Path) -> None:
    with pytest.raises(EngineUnusable, match=r"^it was not loaded within"):
        await HostProcess.start(models, TWICE, load_timeout_s=0.01)
    assert psutil.Process().children() == []


@pytest.mark.parametrize("pinned", [False, True])
async def test_least_recently_used_session_that_is_idle_and_not_pinned_is_evicted_first(
    pool: Pools, changes: Changes, *, pinned: bool
) -> None:
    hosts = pool(memory_bytes=1, pinned=[TWICE] if pinned else [])
    kept = await hosts.load(TWICE)
    if not pinned:
        run_samples(kept, FOREVER)
    await hosts.load(LABELLED)
    await hosts.load(TWICE_2)
    assert hosts.resident_sessions() == [TWICE_2, TWICE]
    assert (LABELLED, False) in changes.states()


async def test_only_an_idle_session_is_unloaded(hosts: HostPool) -> None:
    host = await hosts.load(TWICE)
    ended = run_samples(host, FOREVER)
    assert not await hosts.unload(TWICE)
    host.kill()
    await ended
    await hosts.load(TWICE)
    assert await hosts.unload(TWICE)
    assert hosts.resident_sessions() == []


async def test_closing_leaves_no_process_and_no_shared_memory(pool: Pools) -> None:
    before = shared_memory()
    memory = HostMemory()
    hosts = pool(memory=memory)
    await hosts.load(TWICE)
    assert shared_memory() > before
    load = hosts.load(LABELLED)
    await until(lambda: len(memory.hosts) > 1, 0.001)
    await hosts.close()
    assert load.cancelled()
    assert psutil.Process().children() == []
    assert shared_memory() <= before


async def test_idle_hosts_grown_above_the_budget_are_evicted(
    pool: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = pool()
    await hosts.load(TWICE)
    await hosts.load(LABELLED)
    monkeypatch.setattr(worker_agent.hosts.pool, "rss_bytes", lambda _pid: 600 << 30)
    monkeypatch.setattr(worker_agent.hosts.sessions, "rss_bytes", lambda _pid: 600 << 30)
    await hosts.check_memory()
    assert hosts.resident_sessions() == [LABELLED]


async def test_only_the_leaking_host_is_killed(
    pool: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = pool()
    leaking, sound = await hosts.load(TWICE), await hosts.load(LABELLED)
    cut, kept = run_samples(leaking, FOREVER), run_samples(sound, FOREVER)
    sizes = {leaking.pid: 2 << 40, sound.pid: 1 << 30}
    monkeypatch.setattr(worker_agent.hosts.pool, "rss_bytes", sizes.__getitem__)
    monkeypatch.setattr(worker_agent.hosts.sessions, "rss_bytes", sizes.__getitem__)
    await hosts.check_memory()
    ended = await cut
    assert ended.fault is Fault.HOST_DIED
    assert "'twice' grew from" in ended.detail
    assert "2,199,023 MB, above the budget of 1,099,512 MB, and was killed" in ended.detail
    assert not kept.done()
    assert not sound.is_closed


async def test_single_host_above_the_budget_stays_unless_it_grows(pool: Pools) -> None:
    hosts = pool(memory_bytes=1)
    host = await hosts.load(TWICE)
    ended = run_samples(host, FOREVER)
    await hosts.check_memory()
    assert not host.is_closed
    await hosts.close()
    await ended


def sizes_of(monkeypatch: pytest.MonkeyPatch, sizes: Callable[[int], int]) -> None:
    monkeypatch.setattr(worker_agent.hosts.memory, "rss_bytes", sizes)


async def test_load_that_was_crowded_out_at_its_end_has_room_made_for_it_when_it_is_tried_again(
    pool: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1000 << 20
    hosts = pool(memory=HostMemory(limit), memory_bytes=limit)
    await hosts.load(LABELLED)
    for module in ("memory", "pool", "sessions"):
        monkeypatch.setattr(f"worker_agent.hosts.{module}.rss_bytes", lambda _pid: 600 << 20)
    with pytest.raises(CrowdedOut):
        await hosts.load(TWICE)
    assert hosts.resident_sessions() == [LABELLED]
    await hosts.load(TWICE)
    assert hosts.resident_sessions() == [TWICE]


async def test_limit_unloads_idle_sessions_before_it_kills(
    pool: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = HostMemory(1000 << 20)
    hosts = pool(memory=memory)
    busy = await hosts.load(TWICE)
    ended = run_samples(busy, FOREVER)
    await hosts.load(LABELLED)
    sizes_of(monkeypatch, lambda _pid: 600 << 20)
    await hosts.check_memory()
    assert hosts.resident_sessions() == [TWICE]
    assert not ended.done()
    assert memory.used_bytes() == 600 << 20


async def test_inspection_has_room_made_for_it_by_idle_sessions(
    pool: Pools, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = HostMemory(1000 << 20)
    hosts = pool(memory=memory)
    host = await hosts.load(TWICE)
    ended = run_samples(host, FOREVER)
    sizes_of(monkeypatch, lambda _pid: 600 << 20)
    directories = ModelDirectories(models)
    [labelled] = (each for each in directories.engines() if each.name == LABELLED.engine)
    with pytest.raises(CrowdedOut):
        await inspect_in_host(directories, memory, labelled)
    host.kill("to end its run")
    await ended
    await hosts.load(TWICE)
    await inspect_in_host(directories, memory, labelled)
    assert not hosts.resident_sessions()


async def test_preload_whose_host_dies_before_it_is_resident_fails(
    hosts: HostPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Preload.end

    async def end_after_death(preload: Preload) -> None:
        assert preload.host is not None
        os.kill(preload.host.pid, signal.SIGKILL)
        await preload.host._supervising.wait()
        await end(preload)

    monkeypatch.setattr(Preload, "end", end_after_death)
    with pytest.raises(Unavailable, match="has exited"):
        await hosts.preload(TWICE)
    assert hosts._residents.by_use() == []


async def test_limit_kills_the_largest_busy_host_with_a_reason(
    pool: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = pool(memory=HostMemory(1_000_000_000))
    large, small = await hosts.load(TWICE), await hosts.load(LABELLED)
    cut, kept = run_samples(large, FOREVER), run_samples(small, FOREVER)
    sizes_of(monkeypatch, {large.pid: 1_500_000_000, small.pid: 600_000_000}.__getitem__)
    await hosts.check_memory()
    ended = await cut
    assert ended.fault is Fault.HOST_DIED
    assert "used 1,500 MB, above the 1,000 MB that --memory-mb allows" in ended.detail
    assert not kept.done()


async def test_load_that_exceeds_the_limit_between_two_samples_is_refused(pool: Pools) -> None:
    memory = HostMemory(5_000_000)  # of which no sample is taken
    hosts = pool(memory=memory)
    with pytest.raises(TooLarge, match="MB, above the 5 MB that --memory-mb allows"):
        await hosts.load(TWICE)
    assert not hosts.resident_sessions()
    assert not memory.hosts


@pytest.mark.parametrize("preloads", [False, True])
async def test_load_with_which_all_hosts_exceed_the_limit_is_refused(
    pool: Pools, changes: Changes, monkeypatch: pytest.MonkeyPatch, *, preloads: bool
) -> None:
    hosts = pool(memory=HostMemory(1_000_000_000))
    await hosts.load(LABELLED)
    sizes_of(monkeypatch, lambda _pid: 600_000_000)
    monkeypatch.setattr(HostPool, "_fits", lambda *_: True)
    error = PreloadAborted if preloads else CrowdedOut
    with pytest.raises(error, match="used 600 MB while all engines used more"):
        await (hosts.preload if preloads else hosts.load)(TWICE)
    assert changes[-1].no_room is preloads
    assert hosts.resident_sessions() == [LABELLED]


@pytest.mark.parametrize(
    ("size_mb", "other_mb", "error", "reason"),
    [
        (150, 50, EngineUnusable, "used 150 MB, above the 100 MB"),
        (90, 50, CrowdedOut, "used 90 MB while all engines used more"),
        (40, 70, CrowdedOut, "used 40 MB while all engines used more"),
    ],
)
async def test_limit_kills_what_is_being_loaded_before_what_serves(
    pool: Pools,
    monkeypatch: pytest.MonkeyPatch,
    size_mb: int,
    other_mb: int,
    error: type[Exception],
    reason: str,
) -> None:
    memory = HostMemory(100_000_000)
    hosts = pool(memory=memory)
    pinned = pool(memory=memory, pinned=[LABELLED])
    other = await pinned.load(LABELLED)
    loading = hosts.load(TWICE)
    await until(lambda: len(memory.hosts) >= 2, 0.005)
    sizes_of(monkeypatch, lambda pid: (other_mb if pid == other.pid else size_mb) * 1_000_000)
    await pinned.check_memory()
    async with asyncio.timeout(60):
        with pytest.raises(error, match=reason):
            await loading
    assert not other.is_closed


def test_kernel_refuses_allocations_above_the_limit_of_a_host() -> None:
    code = (
        "from synergai.runtime.resources import limit_data\n"
        "limit_data(256 << 20)\n"
        "bytearray(64 << 20)\n"
        "try:\n    bytearray(512 << 20)\n"
        "except MemoryError:\n    print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "refused"


async def test_closing_does_not_wait_for_a_load(
    pool: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = HostMemory()
    hosts = pool(memory=memory)
    loading = hosts.load(TWICE)
    await until(lambda: memory.hosts, 0.001)
    (host,) = memory.hosts
    os.kill(host.pid, signal.SIGSTOP)
    monkeypatch.setattr(worker_agent.hosts.launch, "_EXIT_TIMEOUT_S", 1000.0)
    async with asyncio.timeout(30):
        await hosts.close()
    assert loading.cancelled()


async def test_retired_engine_completes_its_runs_and_is_reloaded(
    hosts: HostPool, changes: Changes
) -> None:
    old = await hosts.load(TWICE)
    running = run_samples(old, 20_000)
    hosts.retire(TWICE.engine)
    assert old.is_closed
    assert hosts.get_resident(TWICE) is None
    assert (await run_samples(old, 1)).fault is Fault.HOST_DIED
    assert changes.states() == [(TWICE, True)], "its last run still needs the session"
    assert (await running).outcome is Outcome.COMPLETED
    new = await hosts.load(TWICE)
    assert (await run_samples(new, 1)).outcome is Outcome.COMPLETED
    assert new.pid != old.pid
    assert changes.states() == [(TWICE, True), (TWICE, False), (TWICE, True)]


async def test_host_is_killed_before_its_agent_when_out_of_memory(hosts: HostPool) -> None:
    host = await hosts.load(TWICE)
    own, its = (int(_oom_score(pid)) for pid in (os.getpid(), host.pid))
    assert its >= own + 300


def _oom_score(pid: int) -> str:
    return Path(f"/proc/{pid}/oom_score").read_text()


async def test_close_does_not_wait_for_runs_of_a_retired_host(pool: Pools) -> None:
    hosts = pool()
    ended = run_samples(await hosts.load(TWICE), FOREVER)
    hosts.retire(TWICE.engine)
    await hosts.close()
    assert (await ended).fault is Fault.HOST_DIED
    assert psutil.Process().children() == []


async def test_size_of_a_loaded_session_is_told(pool: Pools, changes: Changes) -> None:
    hosts = pool()
    await hosts.load(TWICE)
    await hosts.close()
    [size] = hosts.session_bytes().values()
    assert size == changes[0].size > 1 << 20
