"""Two versions of an engine in a gateway with its own worker."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from onnx import helper

import synergai
from demo.local_fleet import LocalFleet
from synergai.errors import NotFound
from tests.http1 import fetch
from tests.tiny_onnx import floats, new_model
from tests.waiting import wait_until

ENGINE = "times"
DEADLINE_S = 30.0
LOOK = ("env", "SYNERGAI_SERVE_MODELS_LOOK_S=0.1")


def put_version(models: Path, version: int, *, broken: bool = False) -> None:
    """Add a version of the engine, which multiplies its input by its number."""
    x, y = floats([1], "x", "y")
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    model = new_model([node], [x], [y], {"factor": np.array([version], np.float32)})
    folder = models / ENGINE / str(version)
    staging = models / f".{version}"
    staging.mkdir(parents=True)
    content = model.SerializeToString()
    (staging / "model.onnx").write_bytes(content[: len(content) // 2] if broken else content)
    folder.parent.mkdir(exist_ok=True)
    staging.rename(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    for version in (1, 2):
        put_version(models, version)
    return models


@pytest.fixture(scope="module")
def fleet(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_gateway(prefix=LOOK, models=models)
        fleet.wait_for_workers(1)
        yield fleet


def answer(client: synergai.SyncClient, version: str = "") -> tuple[float, str]:
    """Return what the engine makes of 1, and the version that the response names."""
    engine = f"{ENGINE}/{version}" if version else ENGINE
    result = client.infer(engine, {"x": [1.0]}, deadline=DEADLINE_S)
    return float(result.outputs["y"][0]), result.version


def test_every_call_takes_a_version_and_names_the_one_that_answered(
    client: synergai.SyncClient,
) -> None:
    assert [answer(client, version) for version in ("1", "2", "")] == [
        (1.0, "1"),
        (2.0, "2"),
        (2.0, "2"),
    ]
    streamed = client.stream(f"{ENGINE}/1", [{"x": np.ones(1, np.float32)}], deadline=DEADLINE_S)
    assert [result.version for result in streamed] == ["1"]
    job = client.submit(f"{ENGINE}/1", queries=5)
    assert job.wait().spec.version == "1"
    assert client.submit(ENGINE, queries=5).wait().spec.version == "2"
    assert client.engine(f"{ENGINE}/1").version == "1"
    assert client.engine(ENGINE).version == "2"
    assert client.ready(f"{ENGINE}/1")
    assert not client.ready(f"{ENGINE}/3")
    for unknown in ("3", "two"):
        with pytest.raises(NotFound, match="it has 1, 2"):
            answer(client, unknown)
        with pytest.raises(synergai.SynergaiError):
            client.submit(f"{ENGINE}/{unknown}", queries=1)


def rest(fleet: LocalFleet, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return the answer to a call of the REST form, or its status if it fails."""
    data = None if body is None else json.dumps(body).encode()
    answer = fetch(fleet.http_address, f"/v2/{path}", data)
    return json.loads(answer.body) if answer.status == 200 else answer.status


def test_rest_takes_a_version_in_the_path(fleet: LocalFleet) -> None:
    model = f"models/{ENGINE}"
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    for version, expected in (("1", 1.0), ("2", 2.0)):
        answered = rest(fleet, f"{model}/versions/{version}/infer", body)
        assert answered["model_name"] == ENGINE
        assert answered["model_version"] == version
        assert answered["outputs"][0]["data"] == [expected]
        assert rest(fleet, f"{model}/versions/{version}/ready") == {"name": ENGINE, "ready": True}
        config = rest(fleet, f"{model}/versions/{version}/config")
        assert config["version_policy"]["specific"]["versions"] == [int(version)]
        metadata = rest(fleet, f"{model}/versions/{version}")
        assert (metadata["name"], metadata["versions"]) == (ENGINE, ["1", "2"])
        assert metadata["properties"]["version"] == version
        [statistics] = rest(fleet, f"{model}/versions/{version}/stats")["model_stats"]
        assert (statistics["name"], statistics["version"]) == (ENGINE, version)
        assert statistics["inference_count"] >= 1
    both = rest(fleet, f"{model}/stats")["model_stats"]
    assert [each["version"] for each in both] == ["1", "2"]
    index = rest(fleet, "repository/index", {})
    assert [(each["name"], each["version"]) for each in index] == [(ENGINE, "1"), (ENGINE, "2")]
    for call in ("", "/ready", "/config", "/stats"):
        assert rest(fleet, f"{model}/versions/3{call}") == 404
    assert rest(fleet, f"{model}/versions/3/infer", body) == 404


# --- rollouts -----------------------------------------------------------------------------------


class Traffic:
    """Requests without a version, one after the other, from a thread of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered: list[str] = []
        self.failures: list[Exception] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with synergai.SyncClient(self._address) as client:
            while not self._ended.is_set():
                try:
                    value, version = answer(client)
                    assert value == float(version)
                    self.answered.append(version)
                except Exception as error:  # noqa: BLE001 - reported by the test
                    self.failures.append(error)

    def wait_for(self, version: str) -> None:
        """Wait until a request that began later than now is answered by a version."""
        first = len(self.answered) + 1
        wait_until(lambda: version in self.answered[first:])


def test_no_request_fails_during_rollouts_and_with_new_versions(
    fleet: LocalFleet, models: Path, client: synergai.SyncClient
) -> None:
    with Traffic(fleet.address) as traffic:
        traffic.wait_for("2")
        client.pin(ENGINE, "1")
        traffic.wait_for("1")
        client.roll_out(ENGINE, "2", 0.5)
        traffic.wait_for("2")
        traffic.wait_for("1")
        client.promote(ENGINE)
        traffic.wait_for("2")
        client.pin(ENGINE, "")
        put_version(models, 3)
        traffic.wait_for("3")
        client.roll_out(ENGINE, "2", 1.0)
        traffic.wait_for("2")
        client.roll_back(ENGINE)
        traffic.wait_for("3")
        client.pin(ENGINE, "")
    assert traffic.failures == []


def test_request_id_decides_and_policy_survives_a_restart(
    fleet: LocalFleet, models: Path, client: synergai.SyncClient
) -> None:
    model = f"models/{ENGINE}"

    def versions() -> dict[str, str]:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
        return {
            key: rest(fleet, f"{model}/infer", {"id": key, **body})["model_version"]
            for key in map(str, range(40))
        }

    client.roll_out(ENGINE, "2", 0.5)
    before = versions()
    assert set(before.values()) == {"2", "3"}
    job = client.submit(ENGINE, queries=5, idempotency_key="once")
    accepted = job.wait().spec.version
    fleet.kill("gateway")
    fleet.start_gateway(prefix=LOOK, models=models)
    fleet.wait_for_workers(1)
    wait_until(lambda: all(each.prepared for each in shown(client, "2")))
    assert versions() == before
    again = client.submit(ENGINE, queries=5, idempotency_key="once").wait()
    assert (again.id, again.spec.version) == (job.id, accepted)
    client.roll_out(ENGINE, "2", 0.9)
    grown = versions()
    assert all(grown[key] == "2" for key, version in before.items() if version == "2")
    policy = client.version_policy(ENGINE)
    assert (policy.base, policy.target, policy.share) == ("3", "2", 0.9)
    [old] = shown(client, "3")
    assert old.requests == sum(version == "3" for version in [*before.values(), *grown.values()])
    assert old.errors == 0
    assert 0.0 < old.mean_s < DEADLINE_S
    client.pin(ENGINE, "")


def shown(client: synergai.SyncClient, version: str) -> list[synergai.VersionFigures]:
    policy = client.version_policy(ENGINE)
    return [each for each in policy.versions if each.version == version]


def test_pinned_version_is_shown_as_loaded_after_a_restart(
    fleet: LocalFleet, models: Path, client: synergai.SyncClient
) -> None:
    client.pin(ENGINE, "1")
    fleet.kill("gateway")
    fleet.start_gateway(prefix=LOOK, models=models)
    fleet.wait_for_workers(1)
    assert answer(client) == (1.0, "1")
    assert all(each.loaded for each in shown(client, "1"))
    client.pin(ENGINE, "")
