"""Jobs and requests on one worker, at default settings and under the thesis's policy."""

import contextlib
import math
from collections.abc import Iterator

import pytest

import synergai
from synergai.testing import LocalFleet
from tests.acceptance import mixed_load
from tests.emulated_engines import write_emulated_engines


@pytest.fixture(
    scope="module", params=[[], ["--policy", "synergai"], ["--strict", "--policy", "synergai"]]
)
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalFleet, bool]]:
    """A gateway and one worker, and whether jobs yield to requests."""
    directory = tmp_path_factory.mktemp("mixed")
    models, dictionary = write_emulated_engines(directory, mixed_load.QUERY_S, mixed_load.CLASS)
    with LocalFleet(directory / "fleet") as fleet:
        fleet.start_gateway([*request.param, "--dictionary", str(dictionary)])
        fleet.start_agent(
            "box", models=models, worker_class=mixed_load.CLASS, options=["--threads", "1"]
        )
        fleet.wait_for_workers(1)
        yield fleet, "--strict" not in request.param


async def test_endless_job_starves_requests_only_in_strict_mode(
    fleet: tuple[LocalFleet, bool],
) -> None:
    local, yields = fleet
    mix = await mixed_load.run_with_endless_jobs(local.address, 1, 3.0)
    answered = [latency < math.inf for latency in mix.latencies_s]
    assert len(answered) >= 3
    assert all(answered) if yields else not any(answered)


async def test_request_whose_engine_takes_longer_than_its_deadline_is_refused_at_once(
    fleet: tuple[LocalFleet, bool],
) -> None:
    local, _ = fleet
    deadline = mixed_load.QUERY_S[mixed_load.SLOW] / 4
    async with synergai.Client(local.address) as client:
        with pytest.raises(synergai.Overloaded, match="would take about"):
            await client.infer(mixed_load.SLOW, {"x": [0.0]}, deadline=deadline)


async def test_long_query_is_aborted_for_a_deadline_or_the_request_refused_at_once(
    fleet: tuple[LocalFleet, bool],
) -> None:
    local, yields = fleet
    async with synergai.Client(local.address) as client:
        await client.load(mixed_load.LIVE)
        job = await client.submit(mixed_load.SLOW, queries=mixed_load.ENDLESS)
        async with contextlib.aclosing(job.watch()) as statuses:
            async for status in statuses:
                if status.queries_done > 0:  # before, the request could run first
                    break
        if yields:
            deadline = mixed_load.QUERY_S[mixed_load.SLOW] / 2
            await client.infer(mixed_load.LIVE, {"x": [0.0]}, deadline=deadline)
        else:  # it would wait for the whole job
            with pytest.raises(synergai.Overloaded, match="would take about"):
                await client.infer(mixed_load.LIVE, {"x": [0.0]}, deadline=60.0)
        await job.cancel()
