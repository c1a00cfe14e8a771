"""Requests for a loaded engine are answered while their worker loads another engine."""

import asyncio
from collections.abc import Iterator

import pytest

import synergai
from demo.local_fleet import LocalFleet
from profiler.dictionary.files import add_to_dictionary
from tests.cores import new_entry

SETUP_S = 5.0
"""Longer than the requests take on a busy machine."""
QUERY_S = 0.001
ENGINES = {"live": 0.2, "slow": SETUP_S, "asked": SETUP_S, "unprofiled": SETUP_S}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """A worker with engines that take long to load, of which one is not profiled."""
    folder = tmp_path_factory.mktemp("fleet")
    for name, setup_s in ENGINES.items():
        models = folder / "models" / name
        models.mkdir(parents=True)
        (models / "engine.toml").write_text('backend = "emulated"\nfile = "model.toml"')
        times = f"[[configurations]]\nthreads = 1\nquery_s = {QUERY_S}\nsetup_s = {setup_s}"
        (models / "model.toml").write_text(times)
    entries = [
        new_entry(name, "local", 1.0 / QUERY_S, backend_start_s=ENGINES[name])
        for name in ("live", "slow", "asked")
    ]
    add_to_dictionary(folder / "profile.db", entries)
    with LocalFleet(folder / "fleet") as fleet:
        fleet.start_gateway(["--no-preload", "--dictionary", str(folder / "profile.db")])
        fleet.start_agent("box", models=folder / "models", options=["--threads", "1"])
        fleet.wait_for_workers(1)
        yield fleet


@pytest.mark.parametrize(
    ("loads_for", "engine"), [("job", "slow"), ("job", "unprofiled"), ("request", "asked")]
)
async def test_requests_are_answered_while_another_engine_is_loaded(
    fleet: LocalFleet, loads_for: str, engine: str
) -> None:
    async with synergai.Client(fleet.address) as client:
        await client.load("live")
        await client.infer("live", {"x": [0.0]})
        loading: asyncio.Future[object]
        if loads_for == "job":
            job = await client.submit(engine, queries=200)
            loading = asyncio.ensure_future(job.wait())
        else:
            loading = asyncio.ensure_future(client.infer(engine, {"x": [0.0]}))
        for _ in range(9):  # more than a running job has to yield to
            await client.infer("live", {"x": [0.0]})
        assert not loading.done()
        await loading
