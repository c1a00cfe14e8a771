"""Execution providers in a fleet: an emulated device, and one that does not work."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.local_fleet import LocalFleet
from profiler.dictionary.files import add_to_dictionary
from profiler.zoo.recipes import build
from synergai.client.sync import SyncClient
from synergai.domain import Configuration, EngineName, Session
from synergai.jobs import JobState
from tests.cores import new_entry

ENGINE = EngineName("echo")
CPU = Configuration(1)
DEVICE = Configuration(0, "", "Emulated")
BROKEN = Configuration(0, "", "CUDA")
SETTINGS = """
threads = [1]
[providers.CPU]
[providers.Emulated]
[providers.CUDA]
"""
MODEL = """
[[configurations]]
threads = 1
query_s = 0.004
setup_s = 0.0
[[configurations]]
provider = "Emulated"
query_s = 0.002
setup_s = 0.0
"""
QPS = {CPU: 250.0, DEVICE: 500.0, BROKEN: 1000.0}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    folder = tmp_path_factory.mktemp("providers")
    engine = folder / "models" / ENGINE
    engine.mkdir(parents=True)
    (engine / "model.toml").write_text(MODEL)
    (engine / "engine.toml").write_text('backend = "emulated"\nfile = "model.toml"\n')
    settings = folder / "agent.toml"
    settings.write_text(SETTINGS)
    dictionary = folder / "dictionary.db"
    add_to_dictionary(
        dictionary,
        [new_entry(ENGINE, "local", qps, each) for each, qps in QPS.items()],
    )
    with LocalFleet(folder / "fleet") as fleet:
        fleet.start_gateway(("--dictionary", str(dictionary)))
        fleet.start_agent("board", models=engine.parent, options=("--config", str(settings)))
        fleet.wait_for_workers(1)
        yield fleet


def test_worker_has_configurations_of_each_provider(client: SyncClient) -> None:
    [worker] = client.workers()
    assert worker.configurations == (DEVICE, BROKEN, CPU)


def test_broken_provider_harms_no_job(client: SyncClient) -> None:
    for job in [client.submit(ENGINE, queries=40) for _ in range(6)]:
        status = job.wait()
        assert status.state is JobState.SUCCEEDED, status.reason
        # And not with CUDA, the fastest by the dictionary.
        assert {each.configuration for each in status.executions} == {DEVICE}
    [worker] = client.workers()
    [unusable] = worker.unusable
    assert unusable.session == Session(ENGINE, BROKEN)
    assert "CUDA runs no engines of the backend 'emulated'" in unusable.reason


def test_onnx_runtime_keeps_no_telemetry(tmp_path: Path) -> None:
    build(EngineName("onnx_digits"), tmp_path)
    [model] = tmp_path.rglob("*.onnx")
    load = (
        "import sys, worker_agent.host; from pathlib import Path; "
        "from worker_agent.backends import BACKENDS; "
        "BACKENDS.get('onnxruntime')(Path(sys.argv[1]), 1)"
    )
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home)}
    for name in ("XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY"):
        environment.pop(name, None)
    subprocess.run([sys.executable, "-c", load, str(model)], env=environment, check=True)
    assert not list(home.iterdir())
