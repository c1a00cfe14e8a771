"""Requests for a loaded engine are answered while their worker loads another engine."""

import asyncio
from pathlib import Path

import pytest

import synergai
from demo.local_fleet import LocalFleet
from profiler.dictionary.files import add_to_dictionary
from tests.cores import new_entry

SETUP_S = 5.0
"""Longer than the requests take on a busy machine."""
QUERY_S = 0.001
ENGINES = {"live": 0.2, "slow": SETUP_S}


def write_files(folder: Path, *, profiled: bool) -> None:
    for name, setup_s in ENGINES.items():
        models = folder / "models" / name
        models.mkdir(parents=True)
        (models / "engine.toml").write_text('backend = "emulated"\nfile = "model.toml"')
        times = f"[[configurations]]\nthreads = 1\nquery_s = {QUERY_S}\nsetup_s = {setup_s}"
        (models / "model.toml").write_text(times)
    entries = [
        new_entry(name, "local", 1.0 / QUERY_S, backend_start_s=setup_s)
        for name, setup_s in ENGINES.items()
    ]
    add_to_dictionary(folder / "profile.db", entries if profiled else [])


@pytest.mark.parametrize(
    ("loads_for", "policy", "profiled"),
    [
        ("job", "malleable", True),
        ("job", "synergai", True),
        ("job", "malleable", False),
        ("request", "malleable", True),
    ],
)
async def test_requests_are_answered_while_another_engine_is_loaded(
    tmp_path: Path, loads_for: str, policy: str, *, profiled: bool
) -> None:
    write_files(tmp_path, profiled=profiled)
    with LocalFleet(tmp_path / "fleet") as fleet:
        options = ["--policy", policy, "--no-preload"]
        fleet.start_gateway([*options, "--dictionary", str(tmp_path / "profile.db")])
        fleet.start_agent("box", models=tmp_path / "models", options=["--threads", "1"])
        fleet.wait_for_workers(1)
        async with synergai.Client(fleet.address) as client:
            await client.load("live")
            await client.infer("live", {"x": [0.0]})
            loading: asyncio.Future[object]
            if loads_for == "job":
                job = await client.submit("slow", queries=200)
                loading = asyncio.ensure_future(job.wait())
            else:
                loading = asyncio.ensure_future(client.infer("slow", {"x": [0.0]}))
            for _ in range(9):  # more than a running job has to yield to
                await client.infer("live", {"x": [0.0]})
            assert not loading.done()
            await loading
