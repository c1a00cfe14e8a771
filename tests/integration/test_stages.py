"""An engine that no worker has whole, served by workers that have its stages."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import synergai
from synergai.errors import DeadlineExceeded, Overloaded, Unavailable
from synergai.models.directory import ModelDirectory
from synergai.testing import LocalFleet
from tests.staged_engines import ENGINE, all_stages, build_stages
from tests.waiting import wait_until

IMAGES = np.random.default_rng(0).random((8, 1, 1, 8, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_stages(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def fleet(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalFleet]:
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_gateway()
        for name, models in folders.items():
            if name != "whole":
                fleet.start_agent(name, models=models)
        fleet.wait_for_workers(3)
        yield fleet


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[synergai.SyncClient]:
    with synergai.SyncClient(fleet.address) as client:
        yield client


@pytest.fixture(scope="module")
def answers(folders: dict[str, Path]) -> list[np.ndarray]:
    """What the whole engine computes."""
    session = onnxruntime.InferenceSession(ModelDirectory(folders["whole"]).get(ENGINE).file)
    [name] = [each.name for each in session.get_inputs()]
    return [session.run(None, {name: image})[0] for image in IMAGES]


def answer(
    client: synergai.SyncClient, image: np.ndarray, deadline: float | None = None
) -> np.ndarray:
    return client.infer(ENGINE, {"image": image}, deadline=deadline)["probabilities"]


def test_stages_answer_as_the_whole_engine_does(
    client: synergai.SyncClient, answers: list[np.ndarray]
) -> None:
    for image, expected in zip(IMAGES, answers, strict=True):
        np.testing.assert_allclose(answer(client, image), expected, atol=1e-6)
    with ThreadPoolExecutor(len(IMAGES)) as pool:
        found = list(pool.map(partial(answer, client), IMAGES))
    np.testing.assert_allclose(found, answers, atol=1e-6)


def test_clients_see_the_whole_engine_and_no_stage(
    fleet: LocalFleet, client: synergai.SyncClient
) -> None:
    engine = client.engine(ENGINE)
    assert [(each.name, each.shape) for each in engine.inputs] == [("image", (-1, 1, 8, 8))]
    assert [each.name for each in engine.outputs] == ["probabilities"]
    address = f"http://{fleet.http_address}/v2/models/{ENGINE}"
    with urllib.request.urlopen(f"{address}/ready") as response:
        assert response.status == 200
    with urllib.request.urlopen(address) as response:
        assert json.load(response)["versions"] == ["1"]
    index = urllib.request.Request(f"http://{fleet.http_address}/v2/repository/index", b"{}")
    with urllib.request.urlopen(index) as response:
        assert [(each["name"], each["state"]) for each in json.load(response)] == [
            (ENGINE, "READY")
        ]


def test_rest_request_in_json_runs_through_the_stages(
    fleet: LocalFleet, answers: list[np.ndarray]
) -> None:
    image = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8]}
    body = {"id": "one", "inputs": [image | {"data": IMAGES[0].ravel().tolist()}]}
    address = f"http://{fleet.http_address}/v2/models/{ENGINE}/infer"
    with urllib.request.urlopen(address, json.dumps(body).encode()) as response:
        found = json.load(response)
    assert (found["model_name"], found["id"]) == (ENGINE, "one")
    np.testing.assert_allclose([found["outputs"][0]["data"]], answers[0], atol=1e-6)


def test_timings_name_the_workers_of_all_stages(client: synergai.SyncClient) -> None:
    asked = {"synergai_timings": True}
    found = client.infer(ENGINE, {"image": IMAGES[0]}, parameters=asked).parameters
    assert found["synergai_worker"] == "stage-0 stage-1 stage-2"
    assert found["synergai_configuration"] == "threads=1 threads=1 threads=1"
    assert int(found["synergai_compute_us"]) > 0
    assert not client.infer(ENGINE, {"image": IMAGES[0]}).parameters


def test_deadline_is_kept_over_all_stages(client: synergai.SyncClient) -> None:
    with pytest.raises((DeadlineExceeded, Overloaded)):
        answer(client, IMAGES[0], deadline=1e-6)
    assert answer(client, IMAGES[0], deadline=10.0).shape == (1, 10)


def test_engine_without_one_of_its_stages_is_unavailable_until_it_is_back(
    fleet: LocalFleet, client: synergai.SyncClient, folders: dict[str, Path]
) -> None:
    fleet.agents["stage-1"].send_signal(signal.SIGTERM)
    fleet.agents["stage-1"].wait()

    def is_available() -> bool:
        try:
            answer(client, IMAGES[0])
        except Unavailable:
            return False
        return True

    wait_until(lambda: not is_available())
    fleet.start_agent("stage-1", models=folders["stage-1"])
    wait_until(is_available)


def test_killed_worker_costs_no_request_while_another_one_has_its_stages(
    folders: dict[str, Path], answers: list[np.ndarray], tmp_path: Path
) -> None:
    models = all_stages(folders, tmp_path / "models")
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        for name in ("one", "other"):
            fleet.start_agent(name, models=models)
        fleet.wait_for_workers(2)
        with synergai.SyncClient(fleet.address) as client, ThreadPoolExecutor(8) as pool:
            images = [number % len(IMAGES) for number in range(400)]
            found = pool.map(lambda image: answer(client, IMAGES[image], 30.0), images)
            for number, (image, probabilities) in enumerate(zip(images, found, strict=True)):
                np.testing.assert_allclose(probabilities, answers[image], atol=1e-6)
                if number == 100:
                    fleet.agents["one"].kill()
                    fleet.agents["one"].wait()
                    fleet.start_agent("one", models=models)
                if number == 250:
                    fleet.agents["other"].kill()
                    fleet.agents["other"].wait()
