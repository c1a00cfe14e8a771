"""Interruption of endless queries."""

import asyncio
from pathlib import Path

import numpy as np

from synergai.domain import Configuration, EngineName, Outcome, Session
from tests.integration.worker_agent.conftest import request
from worker_agent.hosts.process import HostProcess
from worker_agent.ipc import RunEnded


async def test_aborted_long_query_is_interrupted_and_the_next_runs(
    endless: Path,
) -> None:
    host = await HostProcess.start(endless, Session(EngineName("turns"), Configuration(1)))
    loop = asyncio.get_running_loop()
    given_up: asyncio.Future[RunEnded] = loop.create_future()
    next_one: asyncio.Future[RunEnded] = loop.create_future()
    run = host.run_query(request(np.array([10**12])), given_up.set_result)
    host.run_query(request(np.array([3])), next_one.set_result)
    await asyncio.sleep(0.1)
    host.stop_run(run, abort=True)
    async with asyncio.timeout(60):
        assert (await given_up).outcome is Outcome.STOPPED
        assert (await next_one).outcome is Outcome.COMPLETED
    await host.close()
