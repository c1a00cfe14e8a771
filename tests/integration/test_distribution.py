"""Engines from a push to the gateway to requests that placed workers answer."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from demo.local_fleet import LocalFleet
from profiler.installation import write_definition
from profiler.zoo import recipes as zoo
from profiler.zoo.onnx_graph import OnnxGraph, ValueInfo, write_model
from synergai.client.fleet import WorkerStatus
from synergai.client.store import PlacedState
from synergai.client.sync import SyncClient
from synergai.errors import NotFound, SynergaiError
from synergai.models.manifest import pack

WITHIN_S: Final = 60.0
LOOK: Final = {
    program: ("env", f"SYNERGAI_{program}_MODELS_LOOK_S=0.2") for program in ("AGENT", "SERVE")
}


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, which may fail meanwhile."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            if condition():
                return
        except SynergaiError:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("built")
    zoo.build("onnx_identity", models, lambda _: None)
    return models / "onnx_identity"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    directory = tmp_path_factory.mktemp("fleet")
    with LocalFleet(directory) as fleet:
        fleet.start_gateway(["--heartbeat-s", "0.5"])
        for name in ("edge", "cloud"):
            models = directory / f"models-{name}"
            models.mkdir()
            models.chmod(0o500)  # never written to
            fleet.start_agent(
                name,
                models=models,
                worker_class=f"class-{name}",
                options=["--labels", f"at-{name}"],
                prefix=LOOK["AGENT"],
            )
        yield fleet


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[SyncClient]:
    with SyncClient(fleet.address) as client:
        until(lambda: len(client.workers()) == 2)
        yield client


def push(client: SyncClient, source: Path, name: str, version: int, *place: str) -> None:
    package = pack(source, name, version)
    client.push_engine(name, version, package.manifest.encode(), package.paths, place=place)


def states(client: SyncClient, name: str, version: int) -> dict[str, PlacedState]:
    [stored] = [
        each
        for each in client.stored_engines().engines
        if (each.engine, each.version) == (name, version)
    ]
    return {worker: placed.state for worker, placed in stored.workers.items()}


def served(worker: WorkerStatus) -> set[str]:
    return {engine.name for engine in worker.engines if not engine.fault}


def workers_of(client: SyncClient, name: str) -> set[str]:
    return {worker.id for worker in client.workers() if name in served(worker)}


def test_pushed_versions_are_served_where_they_are_placed_until_removed(
    client: SyncClient, engine: Path
) -> None:
    push(client, engine, "onnx_identity", 1, "class=class-edge")
    push(client, engine, "onnx_identity", 2, "label=at-*")
    until(lambda: workers_of(client, "onnx_identity") == {"edge"})
    until(lambda: workers_of(client, "onnx_identity/2") == {"edge", "cloud"})
    assert states(client, "onnx_identity", 1) == {"edge": PlacedState.INSTALLED}
    for version in ("1", "2"):
        result = client.infer(f"onnx_identity/{version}", {"x": [3.0]})
        assert [array.tolist() for array in result.outputs.values()] == [[3.0]]
    client.place_engine("onnx_identity", 2, ["worker=cloud"])
    until(lambda: workers_of(client, "onnx_identity/2") == {"cloud"})
    client.remove_engine("onnx_identity", 1)
    until(lambda: workers_of(client, "onnx_identity") == set())
    client.remove_engine("onnx_identity", 2)
    until(lambda: workers_of(client, "onnx_identity/2") == set())
    assert client.stored_engines().used_bytes == 0
    with pytest.raises(NotFound):
        client.remove_engine("onnx_identity", 2)


def test_fetched_engines_outlast_restarts_of_gateway_and_agent(
    fleet: LocalFleet, client: SyncClient, engine: Path
) -> None:
    push(client, engine, "onnx_identity", 7, "edge")
    until(lambda: workers_of(client, "onnx_identity/7") == {"edge"})
    fleet.kill("gateway")
    fleet.kill("edge")
    fleet.start_gateway(["--heartbeat-s", "0.5"])
    models = fleet.directory / "models-edge"
    fleet.start_agent(
        "edge",
        models=models,
        worker_class="class-edge",
        options=["--labels", "at-edge"],
        prefix=LOOK["AGENT"],
    )
    until(lambda: workers_of(client, "onnx_identity/7") == {"edge"})
    until(lambda: states(client, "onnx_identity", 7) == {"edge": PlacedState.INSTALLED})
    client.remove_engine("onnx_identity", 7)


def test_worker_of_serve_fetches_from_its_own_gateway(tmp_path: Path, engine: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway(["--worker-id", "own"], LOOK["SERVE"], models=models)
        with SyncClient(fleet.address) as client:
            push(client, engine, "onnx_identity", 3)
            until(lambda: workers_of(client, "onnx_identity/3") == {"own"})
            assert client.infer("onnx_identity", {"x": [1.0]}).outputs


def test_pushed_engine_is_served_with_all_its_variants_until_its_removal_is_asked_for(
    fleet: LocalFleet, client: SyncClient, tmp_path: Path
) -> None:
    tables = []
    for name, operator in (("same", "Identity"), ("negative", "Neg")):
        graph = OnnxGraph(name, 11)
        graph.node(operator, ["x"], "y")
        tensor = ValueInfo(shape=["n"])
        write_model(tmp_path / f"{name}.onnx", graph.model({"x": tensor}, {"y": tensor}))
        tables.append({"name": name, "file": f"{name}.onnx"})
    write_definition(tmp_path, {"variants": tables})

    push(client, tmp_path, "family", 1, "label=at-*")

    until(lambda: workers_of(client, "family") == {"edge", "cloud"})
    for worker in client.workers():
        [family] = [engine for engine in worker.engines if engine.name == "family"]
        assert [variant.name for variant in family.variants] == ["same", "negative"]
    for variant, answer in (("same", 3.0), ("negative", -3.0)):
        result = client.infer(f"family/1.{variant}", {"x": np.array([3.0], np.float32)})
        assert [array.tolist() for array in result.outputs.values()] == [[answer]]
    client.remove_engine("family", 1)
    until(lambda: workers_of(client, "family") == set())
    # The fleet is shared, and engines of other tests may be gone unasked.
    removed = [
        line
        for line in fleet.log("gateway").read_text().splitlines()
        if "was removed" in line and "engine family:" in line
    ]
    assert removed
    assert not [line for line in removed if "WARNING" in line]
