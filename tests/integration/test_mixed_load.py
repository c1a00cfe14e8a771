"""Jobs and requests on one worker, at default settings and strictly under the thesis's policy."""

import contextlib
from collections.abc import Iterator

import pytest

import synergai
from demo.local_fleet import LocalFleet
from synergai.domain import EngineName
from tests.emulated_engines import write_emulated_engines

LIVE, SLOW = EngineName("live"), EngineName("slow")
QUERY_S = {LIVE: 0.01, SLOW: 4.0}
ENDLESS = 10**9


@pytest.fixture(scope="module", params=[[], ["--strict", "--policy", "synergai"]])
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
