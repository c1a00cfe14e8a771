import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from synergai.domain import Configuration, EngineName, Outcome, Session
from tests.integration.worker_agent.conftest import Changes, Pools
from tests.tiny_tflite import save_sum
from tests.waiting import has_ended, until, wait_until
from worker_agent.ipc import RunEnded, Tally

SLOW = Session(EngineName("slow"), Configuration(1))
SUM = Session(EngineName("sum"), Configuration(1))
SETUP_S = 1.0
AGENT = """
import asyncio, pathlib, sys
from tests.integration.worker_agent.test_loading_aside import SLOW
from worker_agent.hosts.process import HostProcess

def launched(host):
    host.suspend()
    print(host.pid, flush=True)

asyncio.run(HostProcess.start(pathlib.Path(sys.argv[1]), SLOW, on_launched=launched))
"""
"""Starts a host that is to be suspended at once."""
TICK_S = 0.01
"""Resolution of the process age that the emulated engine reads from the kernel."""


def write_engines(models: Path) -> None:
    for name in ("slow", "sum"):
        (models / name).mkdir()
    save_sum(models / "sum" / "model.tflite")
    (models / "slow" / "engine.toml").write_text('backend = "emulated"\nfile = "model.toml"')
    times = f"[[configurations]]\nthreads = 1\nquery_s = 0.001\nsetup_s = {SETUP_S}"
    (models / "slow" / "model.toml").write_text(times)


async def test_load_blocks_neither_the_event_loop_nor_another_engine(
    tmp_path: Path, new_pool: Pools
) -> None:
    write_engines(tmp_path)
    hosts = new_pool(tmp_path)
    host = await hosts.load(SUM)
    ended: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
    reports: list[Tally] = []
    run = host.run_samples(0, 10**12, reports.append, ended.set_result)

    loading, turns = hosts.load(SLOW), 0
    while not loading.done():
        await asyncio.sleep(0.02)  # a heartbeat would be sent as often
        turns += 1
    slow = await loading

    host.stop_run(run)
    assert (await ended).outcome is Outcome.STOPPED
    assert slow.ready.setup_s >= SETUP_S - TICK_S
    # A tenth of what an idle machine shows.
    assert turns > SETUP_S / 0.02 / 10
    assert len(reports) >= 3


async def test_a_preload_waits_while_another_engine_computes(
    tmp_path: Path, new_pool: Pools, changes: Changes
) -> None:
    write_engines(tmp_path)
    hosts = new_pool(tmp_path)
    host = await hosts.load(SUM)
    ended: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
    run = host.run_samples(0, 10**12, lambda _: None, ended.set_result)

    loading = hosts.preload(SLOW)
    await until(lambda: "stopped" in states_of_children())
    assert not loading.done()
    host.stop_run(run)
    await ended
    slow = await loading
    assert slow.was_suspended
    assert [change.ready is None for change in changes] == [False, True]  # it took too long
    assert all(change.size > 1 << 20 for change in changes)

    # What is needed does not wait.
    await hosts.unload(SLOW)
    ended = asyncio.get_running_loop().create_future()
    run = host.run_samples(0, 10**12, lambda _: None, ended.set_result)
    loading = hosts.preload(SLOW)
    await until(lambda: "stopped" in states_of_children())
    assert await hosts.load(SLOW) is await loading
    assert not ended.done()
    host.stop_run(run)
    await ended


def test_a_host_that_is_to_be_suspended_at_once_dies_with_its_agent(tmp_path: Path) -> None:
    write_engines(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", AGENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        host = psutil.Process(int(agent.stdout.readline()))
        agent.kill()
    try:
        wait_until(lambda: has_ended(host))
    finally:
        with suppress(psutil.NoSuchProcess):
            host.kill()


def states_of_children() -> set[str]:
    found: set[str] = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            found.add(child.status())
    return found
