"""An engine that no worker can hold whole is cut, deployed and served without a command."""

import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import psutil
import pytest

from demo.local_fleet import LocalFleet, reserved_port
from synergai import SyncClient
from synergai.domain import WorkerId
from synergai.errors import SynergaiError
from synergai.models.manifest import pack
from tests.layered_engines import features, write_layers
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

PLANNER = Path(__file__).parents[2] / "examples" / "route_planner"
ENGINE = "layers"
LAYERS = 16
DEPLOYED_WITHIN_S = 180.0
"""On a machine that does much else."""
MEMORY_MB = 330
"""Of each worker: too little for 150 MB of weights, and enough for half of them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_layers(tmp_path_factory.mktemp("built") / ENGINE, LAYERS)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalFleet]:
    """A gateway and two workers without engines, too small for the whole one."""
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        for name in ("left", "right"):
            start_worker(fleet, name, tmp_path)
        yield fleet


def start_worker(fleet: LocalFleet, name: str, folder: Path, *options: str) -> None:
    models = folder / name
    models.mkdir(exist_ok=True)
    given = ["--memory-mb", str(MEMORY_MB), "--threads", "1", *options]
    fleet.start_agent(name, models=models, options=given)


def push(client: SyncClient, model: Path, name: str = ENGINE, version: int = 1) -> None:
    package = pack(model, name, version)
    client.push_engine(name, version, package.manifest.encode(), package.paths)


def answer(client: SyncClient, seed: int) -> np.ndarray | None:
    try:
        return client.infer(ENGINE, {"features": features(seed)})["scores"]
    except SynergaiError:
        return None


def expected(model: Path, seed: int) -> np.ndarray:
    session = onnxruntime.InferenceSession(model / "model.onnx")
    found: np.ndarray = session.run(None, {"features": features(seed)})[0]
    return found


def stages(client: SyncClient) -> dict[str, tuple[str, ...]]:
    """The stages in the store, and the workers that they are placed on."""
    return {
        each.engine: each.placement
        for each in client.stored_engines().engines
        if each.engine != ENGINE
    }


def test_pushed_engine_that_fits_no_worker_answers_without_a_command(
    fleet: LocalFleet, model: Path
) -> None:
    with SyncClient(fleet.address) as client:
        push(client, model)
        wait_until(lambda: answer(client, 0) is not None, DEPLOYED_WITHIN_S)
        for seed in range(3):
            found = answer(client, seed)
            assert found is not None
            np.testing.assert_allclose(found, expected(model, seed), rtol=1e-4, atol=1e-5)
        placed = stages(client)
        assert sorted(placed.values()) == [("worker=left",), ("worker=right",)]
        assert all(worker.engines_rss_bytes < MEMORY_MB * 1e6 for worker in client.workers())
        fleet.kill("gateway")
        fleet.start_gateway()
        wait_until(lambda: answer(client, 0) is not None, DEPLOYED_WITHIN_S)
        assert stages(client) == placed
        client.remove_engine(ENGINE, 1)
        wait_until(lambda: not stages(client))


def test_links_of_a_deployment_are_measured_before_its_first_query(
    model: Path, tmp_path: Path
) -> None:
    with (
        LocalFleet(tmp_path / "fleet") as fleet,
        SyncClient(fleet.address) as client,
        reserved_port() as left,
        reserved_port() as right,
    ):
        fleet.start_gateway()
        start_worker(fleet, "left", tmp_path, "--peer-port", str(left))
        start_worker(fleet, "right", tmp_path, "--peer-port", str(right))
        push(client, model)

        def is_deployed() -> bool:
            return [each.state for each in client.deployments()] == ["deployed"]

        wait_until(is_deployed, DEPLOYED_WITHIN_S)
        [deployed] = client.deployments()
        assert "links not measured" not in deployed.reason
        workers = {worker.id: worker for worker in client.workers()}
        [route] = deployed.deployed
        first, last = (workers[WorkerId(leg.worker)] for leg in route.legs)
        assert not first.queries_done
        assert first.link.to_bytes_per_s > 0
        assert last.link.from_bytes_per_s > 0
        assert [(link.worker_id, link.bytes_per_s > 0) for link in last.peers] == [(first.id, True)]


def expect(client: SyncClient, model: Path) -> None:
    """Wait until the engine answers, and check what."""

    right = expected(model, 0)

    def answers() -> bool:
        found = answer(client, 0)
        return found is not None and np.allclose(found, right, rtol=1e-4, atol=1e-5)

    wait_until(answers, DEPLOYED_WITHIN_S)


@pytest.mark.parametrize("places", [("left",), ("left", "right")], ids=["one", "both"])
def test_engine_of_model_directories_that_fits_no_worker_answers_without_a_command(
    fleet: LocalFleet, model: Path, tmp_path: Path, places: tuple[str, ...]
) -> None:
    with SyncClient(fleet.address) as client:
        for place in places:
            shutil.copytree(model, tmp_path / place / ENGINE)
        expect(client, model)
        # Once stages have been measured, others may replace them.
        wait_until(lambda: sorted(stages(client).values()) == [("worker=left",), ("worker=right",)])
        assert all(worker.engines_rss_bytes < MEMORY_MB * 1e6 for worker in client.workers())
        [copy] = [each for each in client.stored_engines().engines if each.engine == ENGINE]
        assert (copy.version, copy.pushed_by.partition(" ")[0], copy.workers) == (1, "worker", {})
        for place in places:
            shutil.rmtree(tmp_path / place / ENGINE)
        wait_until(lambda: not client.stored_engines().engines)


def test_stages_are_of_the_file_that_is_in_the_model_directory_now(
    fleet: LocalFleet, model: Path, tmp_path: Path
) -> None:
    own = tmp_path / "left" / ENGINE
    shutil.copytree(model, own)
    with SyncClient(fleet.address) as client:
        expect(client, model)
        other = write_layers(tmp_path / "other" / ENGINE, LAYERS, seed=1)
        (other / "model.onnx").replace(own / "model.onnx")
        expect(client, own)


def test_engine_of_a_server_runs_in_stages_on_it_and_on_an_agent(
    model: Path, tmp_path: Path
) -> None:
    models = tmp_path / "served"
    shutil.copytree(model, models / ENGINE)
    write_layers(models / "fixed", LAYERS, routes="never")
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway(["--memory-mb", str(MEMORY_MB), "--threads", "1"], models=models)
        start_worker(fleet, "right", tmp_path)
        with SyncClient(fleet.address) as client:
            expect(client, model)
            assert {each.engine for each in client.deployments()} == {ENGINE}
            assert "fixed" not in {each.engine for each in client.stored_engines().engines}


def test_planner_in_a_package_of_its_own_decides_where_stages_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    metadata = site / "synergai_edge_first-1.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(PLANNER / "edge_first.py", site)
    given = tomllib.loads((PLANNER / "pyproject.toml").read_text())["project"]
    [(group, points)] = given["entry-points"].items()
    [(name, value)] = points.items()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {given['name']}\nVersion: 1\n"
    )
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{before}")
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway(["--route-planner", name])
        for worker in ("cloud", "edge"):
            start_worker(fleet, worker, tmp_path)
        with SyncClient(fleet.address) as client:
            push(client, model)
            wait_until(lambda: answer(client, 0) is not None, DEPLOYED_WITHIN_S)
            [deployed] = client.deployments()
            [route] = deployed.deployed
            assert [leg.worker for leg in route.legs] == ["edge", "cloud"]


def cutters(gateway: int) -> list[psutil.Process]:
    """Return the processes in which a gateway plans and cuts."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "profiler.planning.live" in command and command[-1] == str(gateway):
            found.append(process)
    return found


def test_deployment_continues_after_the_gateway_was_killed_while_it_cut(
    fleet: LocalFleet, model: Path
) -> None:
    with SyncClient(fleet.address) as client:
        push(client, model)
        wait_until(
            lambda: any(each.state == "cutting" for each in client.deployments()),
            DEPLOYED_WITHIN_S,
        )
        assert fleet.gateway is not None
        killed = fleet.gateway.pid
        fleet.kill("gateway")
        wait_until(lambda: not cutters(killed))
        fleet.start_gateway()
        wait_until(lambda: answer(client, 0) is not None, DEPLOYED_WITHIN_S)
        # A stage of the first plan is removed once it has been idle for a while.
        wait_until(lambda: sorted(stages(client).values()) == [("worker=left",), ("worker=right",)])


def test_engine_that_may_not_be_cut_stays_as_it_is(
    fleet: LocalFleet, model: Path, tmp_path: Path
) -> None:
    fixed = shutil.copytree(model, tmp_path / "fixed")
    (fixed / "engine.toml").write_text('file = "model.onnx"\nroutes = "never"\n')
    with SyncClient(fleet.address) as client:
        push(client, fixed, "fixed")
        push(client, model)
        wait_until(lambda: answer(client, 0) is not None, DEPLOYED_WITHIN_S)
        assert {each.engine for each in client.deployments()} == {ENGINE}
        assert all(name.startswith(ENGINE) for name in stages(client) if name != "fixed")


def test_stage_of_a_worker_that_has_left_moves_to_another_one(
    fleet: LocalFleet, model: Path, tmp_path: Path
) -> None:
    with SyncClient(fleet.address) as client:
        push(client, model)
        wait_until(lambda: answer(client, 0) is not None, DEPLOYED_WITHIN_S)
        fleet.kill("right")
        start_worker(fleet, "third", tmp_path)
        wait_until(lambda: answer(client, 0) is not None, DEPLOYED_WITHIN_S)
        wait_until(
            lambda: all("worker=right" not in each for each in stages(client).values()),
            DEPLOYED_WITHIN_S,
        )
        found = answer(client, 1)
        assert found is not None
        np.testing.assert_allclose(found, expected(model, 1), rtol=1e-4, atol=1e-5)


def test_new_version_is_cut_and_takes_over_without_a_failed_request(
    fleet: LocalFleet, model: Path, tmp_path: Path
) -> None:
    other = write_layers(tmp_path / "other" / ENGINE, LAYERS, seed=1)
    with SyncClient(fleet.address) as client:
        push(client, model)
        wait_until(lambda: answer(client, 0) is not None, DEPLOYED_WITHIN_S)
        push(client, other, version=2)

        old, new = expected(model, 0), expected(other, 0)

        def is_new() -> bool:
            found = client.infer(ENGINE, {"features": features(0)})["scores"]
            is_old = np.allclose(found, old, rtol=1e-4, atol=1e-5)
            assert is_old or np.allclose(found, new, rtol=1e-4, atol=1e-5)
            return not is_old

        wait_until(is_new, DEPLOYED_WITHIN_S)
        wait_until(
            lambda: all(
                each.version == 2 for each in client.stored_engines().engines if "." in each.engine
            ),
            DEPLOYED_WITHIN_S,
        )
