"""A cell is split under load, as the guide says."""

import asyncio
import subprocess
import sys
from pathlib import Path

from demo.local_fleet import LocalFleet
from profiler.zoo.recipes import build
from synergai.client.client import Client
from synergai.jobs import JobState
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.store import DictionaryStore
from synergai.runtime.paths import dictionary_path
from tests.cores import new_entry
from tests.guides import blocks

STAYS, MOVES = "onnx_identity", "onnx_digits"
COMMANDS = blocks("cells")["Split a cell"]


def run(command: str, fleets: dict[str, LocalFleet], folder: Path) -> str:
    texts = {"/tmp/profiles": f"{folder}/profiles"}
    texts |= {f"/var/lib/{name}": f"{fleet.directory}/gateway" for name, fleet in fleets.items()}
    for text, replacement in texts.items():
        command = command.replace(text, replacement)
    words = [sys.executable, "-m", *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def leave(fleet: LocalFleet, worker: str) -> None:
    """Stop an agent, which completes what it runs."""
    agent = fleet.agents[worker]
    agent.terminate()
    assert agent.wait(60) == 0


async def test_cell_is_split_while_jobs_run(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for engine in (STAYS, MOVES):
        build(engine, models)
    profile: ProfileEntry = new_entry(MOVES, "edge", 100.0)
    with LocalFleet(tmp_path / "old") as old, LocalFleet(tmp_path / "new") as new:
        fleets = {"old": old, "new": new}
        await asyncio.to_thread(old.start_gateway)
        with DictionaryStore(dictionary_path(old.directory / "gateway")) as store:
            store.put_all([profile])
        for worker in ("one", "two"):
            old.start_agent(worker, models=models, options=["--threads", "1"])
        await asyncio.to_thread(old.wait_for_workers, 2)
        async with Client(old.address) as client:
            jobs = [await client.submit(engine, queries=200_000) for engine in (STAYS, MOVES)]
            for command in COMMANDS:
                await asyncio.to_thread(run, command, fleets, tmp_path)
            await asyncio.to_thread(new.start_gateway)
            await asyncio.to_thread(leave, old, "two")
            new.start_agent("two", models=models, options=["--threads", "1"])
            await asyncio.to_thread(new.wait_for_workers, 1)
            submit = f"synergai submit {MOVES} --queries 1000 --watch --target {new.address}"
            assert "succeeded" in await asyncio.to_thread(run, submit, fleets, tmp_path)
            for job in jobs:
                status = await job.wait()
                assert (status.state, status.queries_done) == (JobState.SUCCEEDED, 200_000)
        async with Client(new.address) as client:
            assert profile.qps in [entry.qps for entry in await client.dictionary()]
