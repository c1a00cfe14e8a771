"""Jobs submitted again under their idempotency keys, through a real gateway and agent."""

import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import synergai
from synergai.errors import Conflict
from synergai.testing import LocalFleet
from synergai.zoo.build import build
from tests.waiting import until

ROWS = np.arange(40, dtype=np.float32).reshape(-1, 1)
DEADLINE = datetime.now(UTC).replace(microsecond=123) + timedelta(hours=3)
SAME: dict[str, dict[str, Any]] = {
    "everything": {},
    "the name of an output": {"outputs": "y"},
    "the instant": {"by": DEADLINE},
}
OTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "rows": ("inputs", {"inputs": ROWS + 1}),
    "a single value": ("inputs", {"inputs": np.where(ROWS == 39, 38, ROWS)}),
    "order": ("inputs", {"inputs": ROWS[::-1]}),
    "fewer rows": ("inputs", {"inputs": ROWS[:39]}),
    "no rows of its own": ("queries, inputs", {"inputs": None, "queries": 40}),
    "more rows": ("inputs", {"inputs": np.vstack((ROWS, ROWS))}),
    "engine": ("engine", {"engine": "other"}),
    "version": ("version", {"version": "1"}),
    "tenant's rows": ("inputs", {"tenant": "lab", "inputs": ROWS + 1}),
    "outputs": ("inputs or outputs", {"outputs": "y"}),
    "QoS": ("qos", {"qos": 601.0}),
    "deadline": ("qos, by", {"qos": None, "by": DEADLINE}),
    "priority": ("priority", {"priority": 3}),
    "permitted failures": ("max_failures", {"max_failures": 3}),
    "accuracy": ("min_accuracy", {"min_accuracy": 0.5}),
}
"""What the error names, and the options that are changed."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    models = tmp_path_factory.mktemp("models")
    build("onnx_identity", models)
    shutil.copytree(models / "onnx_identity", models / "other")
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_gateway()
        fleet.start_agent("worker", models=models)
        fleet.wait_for_workers(1)
        yield fleet


@pytest.fixture
async def client(fleet: LocalFleet) -> AsyncIterator[synergai.Client]:
    async with synergai.Client(fleet.address) as client:
        yield client


async def submit(
    client: synergai.Client, key: str, engine: str = "onnx_identity", **options: Any
) -> synergai.JobHandle:
    """Submit a job over `ROWS`, with these options changed."""
    return await client.submit(
        engine, **{"inputs": ROWS, "qos": 600.0, **options}, idempotency_key=key
    )


async def values(job: synergai.JobHandle) -> list[float]:
    found = {index: float(result["y"].item()) async for index, result in job.results()}
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("options", SAME.values(), ids=SAME)
async def test_same_submission_under_a_key_is_the_same_job(
    client: synergai.Client, request: pytest.FixtureRequest, options: dict[str, Any]
) -> None:
    key = request.node.name
    options = {"qos": None, **options} if "by" in options else options
    first = await submit(client, key, **options)
    again = await submit(client, key, **options)
    await first.wait()
    ended = await submit(client, key, **options)
    assert first.id == again.id == ended.id
    assert await values(ended) == ROWS.ravel().tolist()


@pytest.mark.parametrize(("differing", "change"), OTHER.values(), ids=OTHER)
async def test_key_refuses_any_other_submission_and_says_what_differs(
    client: synergai.Client,
    request: pytest.FixtureRequest,
    differing: str,
    change: dict[str, Any],
) -> None:
    key = request.node.name
    monday = await submit(client, key, tenant=change.get("tenant", ""))
    for _ in range(2):
        with pytest.raises(Conflict, match=f"was already used .* other values of {differing}"):
            await submit(client, key, **change)
        await monday.wait()


async def test_key_of_sampled_queries_covers_the_instant(client: synergai.Client) -> None:
    options: dict[str, Any] = {"queries": 3, "inputs": None, "qos": None}
    first = await submit(client, "sampled", by=DEADLINE, **options)
    assert (await submit(client, "sampled", by=DEADLINE, **options)).id == first.id
    with pytest.raises(Conflict, match="was already used"):
        await submit(client, "sampled", by=DEADLINE + timedelta(seconds=1), **options)


async def test_interrupted_upload_continues_under_its_key_with_the_same_inputs_only(
    fleet: LocalFleet, client: synergai.Client
) -> None:
    def stored() -> int:
        files = (fleet.directory / "gateway").rglob("*")
        return sum(each.stat().st_size for each in files if each.is_file())

    async def broken() -> AsyncIterator[NDArray[np.float32]]:
        for number, row in enumerate(wide):
            if number == 25:
                # The gateway drops messages that it has not read when the call ends.
                await until(lambda: stored() > before + wide[:3].nbytes, 0.02)
                raise KeyError(number)
            yield row

    # So large that messages are sent before all inputs are read.
    wide = np.repeat(ROWS, 1 << 18, axis=1)
    before = stored()
    with pytest.raises(KeyError):
        await submit(client, "interrupted", inputs=broken())
    with pytest.raises(Conflict, match="was already used"):
        await submit(client, "interrupted", inputs=wide + 1)
    with pytest.raises(Conflict, match="was already used"):
        await submit(client, "interrupted", inputs=wide[:3])
    job = await submit(client, "interrupted", inputs=wide)
    found = {index: float(result["y"][0]) async for index, result in job.results()}
    assert [found[index] for index in range(40)] == ROWS.ravel().tolist()
