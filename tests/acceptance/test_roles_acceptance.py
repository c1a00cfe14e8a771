"""New environments with the agent and a single runtime; each serves a query."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from onnx import helper

from demo.local_fleet import LocalFleet
from synergai import SyncClient
from tests.tiny_onnx import floats, new_model, save_model
from tests.tiny_tensorflow import save_saved_model
from tests.tiny_tflite import save_sum
from tests.waiting import wait_until
from tests.wheel import build_wheel

ROOT = Path(__file__).parents[2]
MAX_IDLE_BYTES = 60 << 20
"""Maximum resident memory of an agent without a loaded engine."""
DESCRIBE = """
import asyncio, pathlib, sys
from worker_agent.inventory import Inventory

async def describe():
    inventory = Inventory(*map(pathlib.Path, sys.argv[1:]))
    await inventory.describe(await inventory.discover(), lambda engine: print(engine.fault))

asyncio.run(describe())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def environment(folder: Path, *requirements: str, constrained: bool = True) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")] if constrained else []
    command = [str(python), "-m", "pip", "install", "--quiet", *constraints, *requirements]
    subprocess.run(command, check=True)
    return python


@pytest.fixture
def models(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    for runtime in ("onnxruntime", "tflite"):
        (models / runtime).mkdir(parents=True)
    x, y = floats(["n", 2], "x", "y")
    doubled = new_model([helper.make_node("Add", ["x", "x"], ["y"])], [x], [y])
    save_model(models / "onnxruntime" / "model.onnx", doubled)
    save_sum(models / "tflite" / "model.tflite")
    save_saved_model(models / "tensorflow" / "saved_model")
    return models


@contextmanager
def running_agent(
    python: Path, models: Path, folder: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run an agent with `python` for a gateway; yield the gateway's address and its process."""
    with LocalFleet(folder) as fleet:
        fleet.start_gateway()
        ready = folder / "agent.json"
        command = [str(python), "-m", "synergai", "agent", "--models", str(models)]
        command += ["--gateway", fleet.hub_address, "--state", str(folder / "agent")]
        variables = {**bare_environment(), "SYNERGAI_AGENT_READY_FILE": str(ready)}
        agent = subprocess.Popen(command, env=variables)
        try:
            wait_until(lambda: ready.exists() or agent.poll() is not None, 120.0)
            assert ready.exists(), "the agent has ended"
            yield fleet.address, agent
        finally:
            agent.terminate()
            agent.wait(30)


def bare_environment() -> dict[str, str]:
    """Return the environment variables without PYTHONPATH, which would expose this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def infer(python: Path, models: Path, engine: str, tensor: str, folder: Path) -> list[float]:
    """Return the engine's output for [1, 2], served by an agent that runs with `python`."""
    with running_agent(python, models, folder) as (address, _), SyncClient(address) as client:
        wait_until(client.workers)
        result = client.infer(engine, {tensor: np.array([[1, 2]], np.float32)}, deadline=120.0)
    [values] = result.outputs.values()
    answer: list[float] = values.ravel().tolist()
    return answer


@pytest.mark.parametrize(
    ("runtime", "tensor"), [("onnxruntime", "x"), ("tflite", "x"), ("tensorflow", "a")]
)
def test_agent_with_a_single_runtime_serves_a_query(
    wheel: Path, models: Path, tmp_path: Path, runtime: str, tensor: str
) -> None:
    python = environment(tmp_path / "venv", f"synergai[agent,{runtime}] @ file://{wheel}")
    assert infer(python, models, runtime, tensor, tmp_path / "state") == [2.0, 4.0]


def test_fault_of_an_engine_without_its_runtime_names_the_extra(
    wheel: Path, models: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path / "venv", f"synergai[agent] @ file://{wheel}")
    with running_agent(python, models, tmp_path / "state") as (_, agent):
        resident: int = psutil.Process(agent.pid).memory_info().rss
    print(f"an agent without an engine loaded: {resident / (1 << 20):.1f} MB")
    assert resident <= MAX_IDLE_BYTES
    command = [str(python), "-c", DESCRIBE, str(models), str(tmp_path / "engines.json")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    for runtime in ("onnxruntime", "tflite", "tensorflow"):
        assert f"pip install 'WHEEL[{runtime}]'" in done.stdout


def test_client_can_be_imported_without_other_roles(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", f"synergai[client] @ file://{wheel}")
    code = "import synergai; synergai.Client, synergai.SyncClient"
    subprocess.run([str(python), "-c", code], check=True, cwd=tmp_path, env=bare_environment())


def test_oldest_supported_onnx_runtime_serves_a_query(
    wheel: Path, models: Path, tmp_path: Path
) -> None:
    requirements = ("onnxruntime==1.18.*", "numpy<2", f"synergai[agent] @ file://{wheel}")
    python = environment(tmp_path / "venv", *requirements, constrained=False)
    assert infer(python, models, "onnxruntime", "x", tmp_path / "state") == [2.0, 4.0]
