"""Variants of an engine in real engine hosts: one process for all of them."""

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import worker_agent.hosts.memory
import worker_agent.hosts.sessions
from synergai.domain import Configuration, EngineName, Fault, Outcome, Session
from synergai.errors import ConfigurationUnusable, Unavailable
from synergai.oip.inference_pb2 import ModelInferResponse
from tests.integration.worker_agent.conftest import Changes, Pools, request
from tests.tiny_onnx import floats, new_model, save_model
from tests.waiting import until
from worker_agent.hosts.loads import LoadSuspected
from worker_agent.hosts.memory import HostMemory
from worker_agent.hosts.pool import HostPool
from worker_agent.hosts.process import HostProcess
from worker_agent.ipc import RunEnded

FAMILY = EngineName("family")
VARIANTS = {"large": 1.0, "small": 2.0}
"""What the variants add to their input."""


def session(variant: str, threads: int = 1) -> Session:
    return Session(FAMILY, Configuration(threads, variant=variant))


def save_sum(path: Path, addend: float) -> None:
    """Save a model that adds a number to its input x [n, 2]."""
    x, y = floats(["n", 2], "x", "y")
    node = helper.make_node("Add", ["x", "c"], ["y"])
    save_model(path, new_model([node], [x], [y], {"c": np.array([addend], np.float32)}))


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory: variants that work, a truncated one, and one without a file."""
    models = tmp_path_factory.mktemp("models")
    folder = models / FAMILY
    folder.mkdir()
    for name, addend in VARIANTS.items():
        save_sum(folder / f"{name}.onnx", addend)
    whole = (folder / "large.onnx").read_bytes()
    (folder / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    (folder / "engine.toml").write_text(
        "".join(
            f'[[variants]]\nname = "{name}"\nfile = "{name}.onnx"\n'
            for name in (*VARIANTS, "truncated", "missing")
        )
    )
    return models


@pytest.fixture(scope="module")
def slow_family(family: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory: emulated variants, the load of one of which does not end."""
    models = tmp_path_factory.mktemp("slow")
    folder = models / FAMILY
    folder.mkdir()
    shutil.copy(family / FAMILY / "large.onnx", folder / "model.onnx")
    text = 'backend = "emulated"\n'
    for name, setup_s in (("large", 0.0), ("endless", 3600.0)):
        (folder / f"{name}.toml").write_text(
            'model = "model.onnx"\n[[configurations]]\n'
            f"threads = 1\nquery_s = 0.001\nsetup_s = {setup_s}\n"
        )
        text += f'[[variants]]\nname = "{name}"\nfile = "{name}.toml"\n'
    (folder / "paces.txt").write_text("endless 1e9\n")
    (folder / "engine.toml").write_text(text)
    return models


@pytest.fixture
def slow_hosts(slow_family: Path, new_pool: Pools) -> HostPool:
    return new_pool(slow_family)


@pytest.fixture
def pool(family: Path, new_pool: Pools) -> Pools:
    return partial(new_pool, family)


@pytest.fixture
def hosts(pool: Pools) -> HostPool:
    return pool()


async def answer(host: HostProcess, variant: str) -> tuple[str, float]:
    """Run a query on a variant; return the version in the response, and what was added."""
    ended: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
    host.run_query(request([[0, 0]]), ended.set_result, variant=variant)
    result = await ended
    assert result.outcome is Outcome.COMPLETED, result.detail
    response = ModelInferResponse.FromString(bytes(result.response))
    return response.model_version, float(np.frombuffer(response.raw_output_contents[0], "<f4")[0])


async def load_started(host: HostProcess) -> None:
    await until(lambda: host._loads.loading is not None, 0.02)


def thread_states(pid: int) -> list[str]:
    """Return the states of a process's threads, such as T for one that is stopped."""
    states = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
            states.append(task.read_text().rpartition(")")[2].split()[0])
    return states


async def stop(host: HostProcess) -> None:
    """Stop a host. Its threads stop one after another, and one that has not could answer."""
    os.kill(host.pid, signal.SIGSTOP)
    await until(lambda: all(state == "T" for state in thread_states(host.pid)), 0.01)


def crash(host: HostProcess) -> None:
    """Crash a stopped host, which may be gone before it is told to continue."""
    os.kill(host.pid, signal.SIGSEGV)
    with suppress(ProcessLookupError):
        os.kill(host.pid, signal.SIGCONT)


async def crash_at_a_query(host: HostProcess) -> None:
    """Crash a host while a query is in flight, which fails."""
    await stop(host)
    computing = asyncio.create_task(answer(host, "large"))
    await asyncio.sleep(0)
    crash(host)
    with pytest.raises(AssertionError, match="signal"):
        await computing


async def test_variants_share_a_process_and_name_the_one_that_answers(hosts: HostPool) -> None:
    large, small = await asyncio.gather(*(hosts.load(session(name)) for name in VARIANTS))
    assert large is small
    for name, addend in VARIANTS.items():
        assert await answer(large, name) == (f"1.{name}", addend)
    assert await hosts.load(session("large", threads=2)) is not large


async def test_variant_that_cannot_be_loaded_costs_only_itself(
    hosts: HostPool, changes: Changes
) -> None:
    host = await hosts.load(session("large"))
    for name, reason in (("truncated", "damaged"), ("missing", "missing")):
        with pytest.raises(ConfigurationUnusable, match=reason):
            await hosts.load(session(name))
    unusable = [each.session.configuration.variant for each in hosts.unusable_sessions()]
    assert unusable == ["missing", "truncated"]
    assert await answer(host, "large") == ("1.large", 1.0)
    assert [change.resident for change in changes] == [True, False, False]


async def test_queries_go_on_while_another_variant_is_loaded(slow_hosts: HostPool) -> None:
    hosts = slow_hosts
    host = await hosts.load(session("large"))
    loading = hosts.load(session("endless"))
    async with asyncio.timeout(60):
        await load_started(host)
        for _ in range(3):
            assert await answer(host, "large") == ("1.large", 1.0)
    assert not loading.done()


async def test_load_is_blamed_for_a_crash_only_where_no_query_may_be_the_cause(
    slow_hosts: HostPool,
) -> None:
    hosts = slow_hosts
    host = await hosts.load(session("large"))
    loading = hosts.load(session("endless"))
    async with asyncio.timeout(60):
        await load_started(host)
        await crash_at_a_query(host)
        with pytest.raises(LoadSuspected):
            await loading
        assert hosts.unusable_sessions() == []
        # The next load is in a host without queries.
        host = await hosts.load(session("large"))
        loading = hosts.load(session("endless"))
        await until(lambda: len(hosts._memory.hosts) == 2, 0.01)
        [alone] = hosts._memory.hosts - {host}
        os.kill(alone.pid, signal.SIGSEGV)
        with pytest.raises(ConfigurationUnusable):
            await loading
        assert await answer(host, "large") == ("1.large", 1.0)


async def test_one_variant_is_unloaded_and_loaded_again(hosts: HostPool) -> None:
    host = await hosts.load(session("large"))
    await hosts.load(session("small"))
    assert await hosts.unload(session("large"))
    assert hosts.resident_sessions() == [session("small")]
    assert await answer(host, "small") == ("1.small", 2.0)
    assert await hosts.load(session("large")) is host
    assert await answer(host, "large") == ("1.large", 1.0)


async def test_crash_costs_all_variants_of_the_host(hosts: HostPool, changes: Changes) -> None:
    host = await hosts.load(session("large"))
    await hosts.load(session("small"))
    os.kill(host.pid, signal.SIGSEGV)
    await until(lambda: len(changes) >= 4, 0.05)
    assert hosts.resident_sessions() == []
    again = await hosts.load(session("small"))
    assert await answer(again, "small") == ("1.small", 2.0)


@pytest.mark.parametrize("computes", [False, True])
async def test_hung_host_is_killed_while_a_variant_is_unloaded(
    pool: Pools, *, computes: bool
) -> None:
    hosts = pool(hang_timeout_s=0.5)
    host = await hosts.load(session("large"))
    await hosts.load(session("small"))
    await until(lambda: host._watchdog is None, 0.01)
    os.kill(host.pid, signal.SIGSTOP)
    ended: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
    if computes:
        host.run_query(b"", ended.set_result, variant="small")
    async with asyncio.timeout(30):
        assert await hosts.unload(session("large"))
        await until(lambda: host.is_closed, 0.01)
        assert not computes or (await ended).fault is Fault.HOST_DIED


async def test_eviction_of_a_variant_does_not_wait_for_the_runs_of_another(
    hosts: HostPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_agent.hosts.sessions, "UNLOAD_WAIT_S", 0.01)
    host = await hosts.load(session("large"))
    await hosts.load(session("small"))
    ended: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
    run = host.run_samples(0, 10**12, lambda _: None, ended.set_result, variant="large")
    async with asyncio.timeout(30):
        assert await hosts.unload(session("small"))
        assert hosts.resident_sessions() == [session("large")]
        again = hosts.load(session("small"))
        host.stop_run(run)
        assert (await ended).outcome is Outcome.STOPPED
        assert await again is host
        assert await answer(host, "small") == ("1.small", 2.0)


@pytest.mark.parametrize("ending", ["crash", "hang"])
async def test_variant_that_waits_to_be_loaded_is_not_blamed_for_the_end_of_its_host(
    pool: Pools, ending: str
) -> None:
    hosts = pool(hang_timeout_s=1.0 if ending == "hang" else 60.0)
    host = await hosts.load(session("large"))
    await stop(host)  # it is computing
    computing = asyncio.create_task(answer(host, "large"))
    loading = hosts.load(session("small"))
    await asyncio.sleep(0)  # both are sent
    await asyncio.sleep(0)
    if ending == "crash":
        crash(host)
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable):
            await loading
        with pytest.raises(AssertionError, match="killed" if ending == "hang" else "signal"):
            await computing
    assert hosts.unusable_sessions() == []
    hosts._hang_timeout_s = 60.0  # the new host may be slow on a busy machine
    assert await answer(await hosts.load(session("small")), "small") == ("1.small", 2.0)


async def test_memory_budget_evicts_variants_one_by_one(pool: Pools) -> None:
    hosts = pool(memory_bytes=1)
    host = await hosts.load(session("large"))
    assert await hosts.load(session("small")) is host
    assert hosts.resident_sessions() == [session("small")]


async def test_variant_whose_load_exceeds_the_limit_between_two_samples_is_refused(
    pool: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = pool(memory=HostMemory(1 << 30))
    host = await hosts.load(session("large"))
    monkeypatch.setattr(worker_agent.hosts.memory, "peak_rss_bytes", lambda _pid: 2 << 30)
    with pytest.raises(ConfigurationUnusable, match="above the 1,074 MB"):
        await hosts.load(session("small"))
    await until(lambda: host.is_closed, 0.01)


async def test_variant_loaded_into_a_host_that_accepts_no_more_runs_is_not_resident(
    hosts: HostPool,
) -> None:
    host = await hosts.load(session("large"))
    ended: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
    host.run_samples(0, 10**12, lambda _: None, ended.set_result, variant="large")
    loading = hosts.load(session("small"))
    await until(lambda: host._loads)
    host._on_unusable("large", "the engine failed")
    assert host.is_closed
    with pytest.raises(Unavailable):
        await loading
    assert hosts._residents.by_use() == []


@pytest.mark.parametrize(
    ("number", "fault"),
    [(signal.SIGSEGV, Fault.CRASHED), (signal.SIGKILL, Fault.HOST_DIED)],
    ids=["crashed", "killed"],
)
async def test_run_that_was_computed_at_a_crash_is_told_from_those_that_waited(
    slow_hosts: HostPool, number: signal.Signals, fault: Fault
) -> None:
    host = await slow_hosts.load(session("large"))
    ended: list[asyncio.Future[RunEnded]] = [
        asyncio.get_running_loop().create_future() for _ in range(2)
    ]
    computed = host.run_samples(
        0, 1, lambda _: None, ended[0].set_result, job="endless", variant="large"
    )
    host.run_query(b"", ended[1].set_result, variant="large")
    async with asyncio.timeout(60):
        await until(lambda: host._arena.computing == computed, 0.02)
        os.kill(host.pid, number)
        faults = [(await each).fault for each in ended]
    assert faults == [fault, Fault.HOST_DIED]
    assert slow_hosts.unusable_sessions() == []
