"""Jobs and requests on one worker, at default settings and under the thesis's policy."""

import contextlib
from collections.abc import Iterator

import pytest

import synergai
from demo.local_fleet import LocalFleet
from synergai.domain import EngineName
from tests.emulated_engines import write_emulated_engines

BATCH, LIVE, SLOW = EngineName("batch"), EngineName("live"), EngineName("slow")
QUERY_S = {BATCH: 0.02, LIVE: 0.01, SLOW: 4.0}
ENDLESS = 10**9
REQUESTS = 5


@pytest.fixture(
    scope="module", params=[[], ["--policy", "synergai"], ["--strict", "--policy", "synergai"]]
)
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalFleet, bool]]:
    """A gateway and one worker, and whether jobs yield to requests."""
    directory = tmp_path_factory.mktemp("mixed")
    models, dictionary = write_emulated_engines(directory, QUERY_S)
    with LocalFleet(directory / "fleet") as fleet:
        fleet.start_gateway([*request.param, "--dictionary", str(dictionary)])
        fleet.start_agent("box", models=models, options=["--threads", "1"])
        fleet.wait_for_workers(1)
        yield fleet, "--strict" not in request.param


async def first_query(job: synergai.JobHandle) -> None:
    """Wait until a query of the job is done; before, a request could run first."""
    async with contextlib.aclosing(job.watch()) as statuses:
        async for status in statuses:
            if status.queries_done > 0:
                return


async def test_endless_job_starves_requests_only_in_strict_mode(
    fleet: tuple[LocalFleet, bool],
) -> None:
    local, yields = fleet
    answered = 0
    async with synergai.Client(local.address) as client:
        await client.load(BATCH)
        await client.load(LIVE)
        job = await client.submit(BATCH, queries=ENDLESS)
        await first_query(job)
        for _ in range(REQUESTS):
            with contextlib.suppress(synergai.SynergaiError):
                await client.infer(LIVE, {"x": [0.0]}, deadline=10.0 if yields else 0.3)
                answered += 1
        await job.cancel()
    assert answered == (REQUESTS if yields else 0)


async def test_request_whose_engine_takes_longer_than_its_deadline_is_refused_at_once(
    fleet: tuple[LocalFleet, bool],
) -> None:
    local, _ = fleet
    deadline = QUERY_S[SLOW] / 4
    async with synergai.Client(local.address) as client:
        with pytest.raises(synergai.Overloaded, match="since no worker is faster"):
            await client.infer(SLOW, {"x": [0.0]}, deadline=deadline)


async def test_long_query_is_aborted_for_a_deadline_or_the_request_refused_at_once(
    fleet: tuple[LocalFleet, bool],
) -> None:
    local, yields = fleet
    async with synergai.Client(local.address) as client:
        for engine in (LIVE, SLOW):
            await client.load(engine)
        job = await client.submit(SLOW, queries=ENDLESS)
        async with contextlib.aclosing(job.watch()) as statuses:
            async for status in statuses:
                if status.state is synergai.JobState.RUNNING:
                    break
        if yields:
            deadline = QUERY_S[SLOW] / 2
            await client.infer(LIVE, {"x": [0.0]}, deadline=deadline)
        else:  # it would wait for the whole job
            with pytest.raises(synergai.Overloaded, match="allow more time, or try later"):
                await client.infer(LIVE, {"x": [0.0]}, deadline=60.0)
        await job.cancel()
