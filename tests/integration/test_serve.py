"""``synergai serve``: a gateway and a worker in one process."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

import synergai
from demo.local_fleet import LocalFleet
from synergai.domain import EngineName
from synergai.jobs import JobState
from tests.emulated_engines import write_emulated_engines
from tests.waiting import wait_until

BATCH, LIVE = EngineName("batch"), EngineName("live")
QUERY_S = {BATCH: 0.02, LIVE: 0.01}
ANY_PORT = ("--listen", "127.0.0.1:0", "--hub", "127.0.0.1:0", "--http", "127.0.0.1:0")


@contextlib.contextmanager
def serving(
    directory: Path, models: Path, options: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    """Run ``serve``; yield its process and addresses, and check that it leaves no process."""
    ready = directory / "ready.json"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "synergai", "serve", str(models), *ANY_PORT, *options]
    command += ["--state", str(directory / "state"), "--threads", "1"]
    variables = {**os.environ, "SYNERGAI_SERVE_READY_FILE": str(ready)}
    with (directory / "serve.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=variables)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, 30.0)
        yield process, json.loads(ready.read_text())
    finally:
        children = psutil.Process(process.pid).children() if process.poll() is None else []
        process.terminate()
        process.wait(30.0)
        assert psutil.wait_procs(children, timeout=60.0)[1] == []


def run_serve(models: Path, state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "synergai", "serve", str(models), "--state", str(state)]
    return subprocess.run(
        [*command, *ANY_PORT, *options], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_emulated_engines(tmp_path, QUERY_S)[0]


async def test_requests_and_jobs_run_and_jobs_survive_a_kill(tmp_path: Path, models: Path) -> None:
    with serving(tmp_path, models) as (process, addresses):
        async with synergai.Client(addresses["address"]) as client:
            response = await client.infer(LIVE, {"x": np.ones(1, np.float32)})
            assert response["y"].shape == (1,)
            job = await client.submit(BATCH, queries=100)
            async with contextlib.aclosing(job.watch()) as statuses:
                async for status in statuses:
                    if status.queries_done > 0:
                        break
        process.kill()
        process.wait()
    with serving(tmp_path, models) as (_, addresses):
        async with synergai.Client(addresses["address"]) as client:
            status = await client.job(job.id).wait()
    assert (status.state, status.queries_done) == (JobState.SUCCEEDED, 100)


async def test_agents_on_other_machines_can_join(tmp_path: Path, models: Path) -> None:
    with (
        serving(tmp_path, models, ("--worker-id", "here")) as (_, addresses),
        LocalFleet(tmp_path / "fleet") as fleet,
    ):
        fleet.address, fleet.hub_address = addresses["address"], addresses["hub_address"]
        fleet.start_agent("elsewhere", models=models, options=["--threads", "1"])
        fleet.wait_for_workers(2)
        async with synergai.Client(addresses["address"]) as client:
            assert {worker.id for worker in await client.workers()} == {"here", "elsewhere"}


def test_interrupt_while_engines_are_inspected_leaves_no_process(
    tmp_path: Path, models: Path
) -> None:
    with serving(tmp_path, models) as (process, _):
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        assert process.wait(20.0) == 0
        assert psutil.wait_procs(children, timeout=60.0)[1] == []
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


def test_model_directory_that_is_missing_is_an_error(tmp_path: Path) -> None:
    result = run_serve(tmp_path / "absent", tmp_path / "state")
    assert result.returncode == 1
    assert f"the model directory {tmp_path / 'absent'} cannot be read (No such" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every directory")
def test_model_directory_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir(mode=0)
    result = run_serve(tmp_path / "models", tmp_path / "state")
    assert result.returncode == 1
    assert f"the model directory {tmp_path / 'models'} cannot be read (Perm" in result.stderr


def test_empty_model_directory_is_served_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with serving(tmp_path, tmp_path / "models"):
        wait_until(lambda: "synergai engines add" in (tmp_path / "serve.log").read_text())


async def test_late_job_is_explained_by_the_command(tmp_path: Path, models: Path) -> None:
    with serving(tmp_path, models) as (_, addresses):
        async with synergai.Client(addresses["address"]) as client:
            await (await client.submit(BATCH, queries=10)).wait()  # its speed is known then
            job = await client.submit(BATCH, queries=50, qos=0.2)
            await job.wait()
        command = [sys.executable, "-m", "synergai", "explain", job.id]
        command += ["--target", addresses["address"]]
        text = await asyncio.to_thread(subprocess.check_output, command, text=True, timeout=60)
    assert text.startswith(f"{job.id}: 50 queries of batch\nLate by ")
    assert " was not acceptable: it needs " in text
