"""Jobs over inputs, from the command line and from Python, and again under idempotency keys."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import synergai
from demo.local_fleet import LocalFleet
from profiler.zoo.recipes import build
from synergai.errors import Conflict
from tests.tiny_images import COLOURS, picture, save_image_engines
from tests.waiting import wait_until

CLASSES = {"red": 0, "green": 1, "blue": 2}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pictures, and a file that is not one."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(2):
        for colour in COLOURS:
            (folder / f"{colour}-ä{number}.jpg").write_bytes(picture(colour))
    (folder / "broken.jpg").write_bytes(b"not an image")
    (folder / "empty.jpg").touch()
    return folder


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    models = save_image_engines(tmp_path_factory.mktemp("models"))
    build("onnx_identity", models)
    shutil.copytree(models / "onnx_identity", models / "other")
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_gateway()
        fleet.start_agent("worker", models=models)
        fleet.wait_for_workers(1)
        yield fleet


def command(fleet: LocalFleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "synergai", *arguments, "--target", fleet.address],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


def found_classes(output: Path) -> dict[str, Any]:
    """Return the class of each picture, or its error, by the name of the file."""
    return {
        result.name.rpartition("/")[2]: result.error or int(result["classes"].item())
        for _, result in synergai.read_results(output)
    }


def test_command_classifies_a_folder_and_lists_what_failed(
    fleet: LocalFleet, photos: Path, tmp_path: Path
) -> None:
    submit = ("submit", "colours", "--inputs", str(photos), "--only", "classes", "--qos", "10m")
    output = tmp_path / "results"
    done = command(fleet, *submit, "--output", str(output))
    assert done.returncode == 0, done.stderr
    found = found_classes(output)
    assert "only JPEG and PNG" in found.pop("broken.jpg")
    assert found.pop("empty.jpg") == "the file is empty"
    assert found == {path.name: CLASSES[path.name.split("-")[0]] for path in photos.glob("*ä*")}
    assert "8 results in" in done.stdout
    assert "(2 failed)" in done.stdout
    assert "2 of 8 inputs" in done.stdout
    assert "2 inputs failed" in done.stderr
    assert "empty.jpg: the file is empty" in done.stderr

    # The same command returns the same job, and another directory gets the same results.
    again = command(fleet, *submit, "--output", str(tmp_path / "copy"), "--json")
    facts = json.loads(again.stdout)
    assert (facts["id"], facts["failures"]) == (done.stdout.split()[0], 2)
    assert found_classes(tmp_path / "copy") == found_classes(output)
    assert "8 results" in command(fleet, *submit, "--output", str(output)).stdout


def test_job_fails_beyond_the_failures_that_it_may_have(fleet: LocalFleet, photos: Path) -> None:
    inputs = ("--inputs", str(photos), "--max-failures", "1")
    done = command(fleet, "submit", "colours", *inputs)
    assert done.returncode == 1
    assert "more than 1 input failed" in done.stderr


async def test_results_of_rows_arrive_while_the_job_runs(fleet: LocalFleet) -> None:
    rows = np.arange(3000, dtype=np.float64).reshape(-1, 1)
    rows[17] = 1e300
    async with synergai.Client(fleet.address) as client:
        job = await client.submit("onnx_identity", inputs=rows, qos=600.0)
        values = {}
        async for index, result in job.results():
            values[index] = result.error or float(next(iter(result.outputs.values())).item())
        status = await job.status()
    assert "cannot be represented as FP32" in str(values.pop(17))
    assert values == {index: float(index) for index in range(3000) if index != 17}
    assert (status.state, status.failures) == (synergai.JobState.SUCCEEDED, 1)


async def test_empty_tensors_are_inputs_and_results(fleet: LocalFleet, tmp_path: Path) -> None:
    empty = np.zeros(0, np.float32)
    async with synergai.Client(fleet.address) as client:
        assert (await client.infer("onnx_identity", {"x": empty}))["y"].shape == (0,)
        job = await client.submit("onnx_identity", inputs=[empty, np.ones(2), empty], qos=600.0)
        await job.wait()
    done = command(fleet, "jobs", "results", job.id, "-o", str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr
    found = dict(synergai.read_results(tmp_path / "results"))
    assert [found[index]["y"].tolist() for index in range(3)] == [[], [1.0, 1.0], []]


def test_job_over_inputs_survives_the_death_of_the_gateway(fleet: LocalFleet) -> None:
    rows = np.arange(2000, dtype=np.float32).reshape(-1, 1)
    with synergai.SyncClient(fleet.address) as client:
        job = client.submit("onnx_identity", inputs=rows, qos=600.0)
        wait_until(lambda: job.status().queries_done > 0)
        fleet.kill("gateway")
        fleet.start_gateway()
        found = [(index, float(result["y"].item())) for index, result in job.results()]
        assert sorted(found) == [(index, float(index)) for index in range(2000)]
        assert job.wait().state is synergai.JobState.SUCCEEDED
    fleet.wait_for_workers(1)  # for the following tests: the job may have ended without it


# --- idempotency keys ----------------------------------------------------------------------------


ROWS = np.arange(40, dtype=np.float32).reshape(-1, 1)
SAME: dict[str, dict[str, Any]] = {
    "everything": {},
    "the name of an output": {"outputs": "y"},
}
OTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "rows": ("inputs", {"inputs": ROWS + 1}),
    "a single value": ("inputs", {"inputs": np.where(ROWS == 39, 38, ROWS)}),
    "order": ("inputs", {"inputs": ROWS[::-1]}),
    "fewer rows": ("inputs", {"inputs": ROWS[:39]}),
    "no rows of its own": ("queries, inputs", {"inputs": None, "queries": 40}),
    "more rows": ("inputs", {"inputs": np.vstack((ROWS, ROWS))}),
    "engine": ("engine", {"engine": "other"}),
    "version": ("version", {"engine": "onnx_identity/1"}),
    "tenant's rows": ("inputs", {"tenant": "lab", "inputs": ROWS + 1}),
    "outputs": ("inputs or outputs", {"outputs": "y"}),
    "QoS": ("qos", {"qos": 601.0}),
    "priority": ("priority", {"priority": 3}),
    "permitted failures": ("max_failures", {"max_failures": 3}),
    "accuracy": ("min_accuracy", {"min_accuracy": 0.5}),
}
"""What the error names, and the options that are changed."""


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


async def test_interrupted_upload_continues_under_its_key_with_the_same_inputs_only(
    fleet: LocalFleet, client: synergai.Client
) -> None:
    def stored() -> int:
        files = (fleet.directory / "gateway").rglob("*")
        return sum(each.stat().st_size for each in files if each.is_file())

    def broken() -> Iterator[NDArray[np.float32]]:
        for number, row in enumerate(wide):
            if number == 25:
                # The gateway drops messages that it has not read when the call ends.
                wait_until(lambda: stored() > before + wide[:3].nbytes)
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
