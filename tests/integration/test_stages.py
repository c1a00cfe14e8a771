"""An engine that no worker has whole: requests and jobs run through workers with its stages."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

import synergai
from demo.local_fleet import LocalFleet
from profiler.planning.plan_case import read_fleet
from synergai.cli.fleet import workers_app as app
from synergai.client.fleet import WorkerLink
from synergai.core.routes.links import GATEWAY
from synergai.data.items import JobResult
from synergai.jobs import JobState
from synergai.models.directory import ModelDirectory
from synergai.names import stage_positions
from tests.http1 import fetch, json_of
from tests.staged_engines import ENGINE, all_stages, build_stages
from tests.waiting import wait_until

FEW, MANY = 8, 4000
IMAGES = np.random.default_rng(0).random((MANY, 1, 8, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_stages(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def answers(folders: dict[str, Path]) -> np.ndarray:
    """What the whole engine computes."""
    session = onnxruntime.InferenceSession(ModelDirectory(folders["whole"]).get(ENGINE).file)
    [name] = [each.name for each in session.get_inputs()]
    return np.stack([session.run(None, {name: image[np.newaxis]})[0] for image in IMAGES])


@pytest.fixture(scope="module")
def fleet(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalFleet]:
    """Three workers with a stage each."""
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_gateway()
        for name in ("stage-0", "stage-1", "stage-2"):
            fleet.start_agent(name, models=folders[name])
        fleet.wait_for_workers(3)
        yield fleet


# --- requests -----------------------------------------------------------------------------------


def answer(client: synergai.SyncClient, number: int, deadline: float | None = None) -> np.ndarray:
    image = IMAGES[number][np.newaxis]
    return client.infer(ENGINE, {"image": image}, deadline=deadline)["probabilities"]


def test_stages_answer_as_the_whole_engine_does(
    client: synergai.SyncClient, answers: np.ndarray
) -> None:
    for number in range(FEW):
        np.testing.assert_allclose(answer(client, number), answers[number], atol=1e-6)
    with ThreadPoolExecutor(FEW) as pool:
        found = list(pool.map(partial(answer, client), range(FEW)))
    np.testing.assert_allclose(found, answers[:FEW], atol=1e-6)


def test_clients_see_the_whole_engine_and_no_stage(
    fleet: LocalFleet, client: synergai.SyncClient
) -> None:
    engine = client.engine(ENGINE)
    assert [(each.name, each.shape) for each in engine.inputs] == [("image", (-1, 1, 8, 8))]
    assert [each.name for each in engine.outputs] == ["probabilities"]
    address, model = fleet.http_address, f"/v2/models/{ENGINE}"
    assert fetch(address, f"{model}/ready").status == 200
    assert json_of(address, model)["versions"] == ["1"]
    [listed] = json_of(address, "/v2/repository/index", {})
    assert (listed["name"], listed["state"]) == (ENGINE, "READY")


# --- jobs ---------------------------------------------------------------------------------------


def check(results: list[tuple[int, JobResult]], answers: np.ndarray, count: int) -> None:
    """Check that each input has one result, and that it is right."""
    assert sorted(index for index, _ in results) == list(range(count))
    for index, result in results:
        assert not result.error
        np.testing.assert_allclose(result.outputs["probabilities"], answers[index], atol=1e-6)


def queries(count: int) -> list[dict[str, np.ndarray]]:
    return [{"image": image[np.newaxis]} for image in IMAGES[:count]]


def test_job_over_samples_runs_through_the_stages(
    client: synergai.SyncClient, folders: dict[str, Path]
) -> None:
    status = client.submit(ENGINE, queries=300, qos=60.0).wait()
    status.raise_unless_succeeded()
    assert status.queries_done == 300
    assert {each.worker_id for each in status.executions} == {"stage-0 stage-1 stage-2"}
    samples = np.load(folders["whole"] / ENGINE / "samples.npz")
    session = onnxruntime.InferenceSession(ModelDirectory(folders["whole"]).get(ENGINE).file)
    classes = session.run(None, {"image": samples["image"]})[0].argmax(axis=1)
    right = classes == samples["labels"]
    assert (status.labelled, status.correct) == (
        300,
        sum(right[i % len(right)] for i in range(300)),
    )


def test_job_over_inputs_has_the_results_of_the_whole_engine(
    client: synergai.SyncClient, answers: np.ndarray
) -> None:
    job = client.submit(ENGINE, inputs=queries(300))
    check(list(job.results()), answers, 300)
    status = job.wait()
    assert status.state is JobState.SUCCEEDED
    assert sum(each.count for each in status.executions) == 300


def test_input_that_a_stage_refuses_fails_alone(
    client: synergai.SyncClient, answers: np.ndarray
) -> None:
    inputs = queries(40)
    inputs[17] = {"image": np.zeros((1, 1, 9, 9), np.float32)}
    job = client.submit(ENGINE, inputs=inputs)
    results = dict(job.results())
    assert job.wait().failures == 1
    assert "image" in results.pop(17).error
    for index, result in results.items():
        np.testing.assert_allclose(result.outputs["probabilities"], answers[index], atol=1e-6)


def test_outputs_are_those_of_the_last_stage(client: synergai.SyncClient) -> None:
    job = client.submit(ENGINE, inputs=queries(3), outputs=["probabilities"])
    assert [list(result.outputs) for _, result in job.results()] == [["probabilities"]] * 3


def test_cancelled_job_ends_before_its_next_queries(client: synergai.SyncClient) -> None:
    job = client.submit(ENGINE, queries=1_000_000)
    wait_until(lambda: job.status().queries_done > 0)
    stages = job.status().stages
    assert [stage_positions(each)[0] for each in stages] == [0, 3, 6]
    status = job.cancel()
    assert status.stages == client.job(job.id).status().stages == stages
    assert status.state is JobState.CANCELLED
    assert 0 < status.queries_done < 1_000_000
    client.submit(ENGINE, queries=10).wait().raise_unless_succeeded()


def test_job_that_is_late_completes_and_says_so(client: synergai.SyncClient) -> None:
    status = client.submit(ENGINE, queries=500, qos=0.01).wait()
    assert status.state is JobState.SUCCEEDED
    assert status.violated
    found = client.explain(status.id)
    assert (found.id, found.engine) == (status.id, ENGINE)
    places = [stage_positions(each.engine) for each in found.stages]
    assert len(places) == 3
    assert all(before[1] == behind[0] for before, behind in pairwise(places))
    assert client.job(found.stages[-1].id).status().id == status.id


def test_urgent_job_overtakes_one_that_fills_the_stages(client: synergai.SyncClient) -> None:
    long = client.submit(ENGINE, queries=1_000_000)
    wait_until(lambda: long.status().queries_done > 0)
    client.submit(ENGINE, queries=100, priority=9).wait().raise_unless_succeeded()
    assert long.status().state is JobState.RUNNING
    long.cancel()


def test_links_are_learned_from_the_tensors(
    fleet: LocalFleet, client: synergai.SyncClient, tmp_path: Path
) -> None:
    began = time.monotonic()
    list(client.submit(ENGINE, inputs=queries(MANY)).results())

    def link() -> WorkerLink:
        return next(each.link for each in client.workers() if each.id == "stage-0")

    wait_until(lambda: min(link().to_bytes_per_s, link().from_bytes_per_s) > 0)
    assert 0 < link().round_trip_s <= time.monotonic() - began
    shown = run_command("--links", "--target", fleet.address)
    for ends in ("gateway +stage-0", "stage-0 +gateway"):
        assert re.search(rf"^{ends} +[\d,.e+]+ Mbit/s", shown, re.MULTILINE)
    file = tmp_path / "fleet.toml"
    file.write_text(run_command("--as-fleet", "--target", fleet.address))
    planned = read_fleet(file)
    assert sorted(each.id for each in planned.workers) == ["stage-0", "stage-1", "stage-2"]
    seconds = planned.links().hop(GATEWAY, "stage-0", 1e6).seconds
    assert seconds == pytest.approx(1e6 / link().to_bytes_per_s, rel=0.9)


def run_command(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_job_continues_with_the_whole_engine_and_in_stages_again(
    folders: dict[str, Path], answers: np.ndarray, tmp_path: Path
) -> None:
    models = all_stages(folders, tmp_path / "models")
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        fleet.start_agent("stages", models=models)
        fleet.wait_for_workers(1)
        with synergai.SyncClient(fleet.address) as client:
            job = client.submit(ENGINE, inputs=queries(MANY))
            wait_until(lambda: job.status().queries_done > 0)
            fleet.kill("stages")
            wait_until(lambda: not client.workers())  # its last reports have arrived
            fleet.start_agent("whole", models=folders["whole"])
            before = job.status().queries_done
            wait_until(lambda: job.status().queries_done > before)
            fleet.kill("whole")
            fleet.start_agent("stages", models=models)
            check(list(job.results()), answers, MANY)
            ran = {each.worker_id for each in job.wait().executions}
    assert "whole" in ran
    assert "stages stages stages" in ran
