"""Responsiveness of the agent while it loads an engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from synergai.domain import Configuration, EngineName, Outcome, Session
from tests.tiny_tflite import save_sum
from worker_agent.hosts.pool import HostPool

if TYPE_CHECKING:
    from pathlib import Path

    from worker_agent.ipc.frames import RunEnded, Tally

SLOW = Session(EngineName("slow"), Configuration(1))
SUM = Session(EngineName("sum"), Configuration(1))
SETUP_S = 1.0
TICK_S = 0.01
"""Resolution of the process age that the emulated engine reads from the kernel."""


async def test_load_blocks_neither_the_event_loop_nor_another_engine(tmp_path: Path) -> None:
    for name in ("slow", "sum"):
        (tmp_path / name).mkdir()
    save_sum(tmp_path / "sum" / "model.tflite")
    (tmp_path / "slow" / "engine.toml").write_text('backend = "emulated"\nfile = "model.toml"')
    times = f"[[configurations]]\nthreads = 1\nquery_s = 0.001\nsetup_s = {SETUP_S}"
    (tmp_path / "slow" / "model.toml").write_text(times)
    hosts = HostPool(tmp_path, memory_bytes=1 << 40)
    try:
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
    finally:
        await hosts.close()
