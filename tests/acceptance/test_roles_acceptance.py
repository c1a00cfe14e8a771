"""New environments with the agent and a single runtime; each serves a query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from synergai.oip import inference_pb2 as oip
from tests.tiny_tensorflow import save_saved_model
from tests.tiny_tflite import save_sum
from tests.wheel import build_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MAX_IDLE_BYTES = 60 << 20
"""Maximum resident memory of an agent without a loaded engine."""
DESCRIBE = """
import asyncio, pathlib, sys
from worker_agent.inventory.inventory import Inventory

async def describe():
    inventory = Inventory(*map(pathlib.Path, sys.argv[1:]))
    await inventory.describe(await inventory.discover(), lambda engine: print(engine.fault))

asyncio.run(describe())
"""
MAX_CLIENT_BYTES = 105 << 20
"""Maximum disk space that the client and its dependencies need."""
# The client uses bare gRPC, which is all that the new environment has.
CLIENT = """
import sys, grpc
channel = grpc.insecure_channel(sys.argv[1])
call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
sys.stdout.buffer.write(call(bytes.fromhex(sys.argv[2]), timeout=60))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def save_onnx(path: Path) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in ("x", "y"))
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y])
    opset = helper.make_opsetid("", 13)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=7), path)


def environment(folder: Path, *requirements: str, constrained: bool = True) -> Path:
    """Create a virtual environment; return its interpreter."""
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
    save_onnx(models / "onnxruntime" / "model.onnx")
    save_sum(models / "tflite" / "model.tflite")
    save_saved_model(models / "tensorflow" / "saved_model")
    return models


@contextmanager
def running_agent(
    python: Path, models: Path, state: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run an agent without a gateway; yield its address and process."""
    ready = state.with_suffix(".json")
    command = [str(python), "-m", "synergai", "agent", "--models", str(models)]
    command += ["--gateway", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--state", str(state)]
    agent = subprocess.Popen([*command, "--ready-file", str(ready)], env=bare_environment())
    try:
        deadline = time.monotonic() + 120
        while not ready.exists():
            assert agent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield json.loads(ready.read_text())["address"], agent
    finally:
        agent.terminate()
        agent.wait(30)


def bare_environment() -> dict[str, str]:
    """Return the environment variables without PYTHONPATH, which would expose this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def infer(python: Path, models: Path, engine: str, tensor: str, state: Path) -> list[float]:
    """Return the engine's output for [1, 2], served by an agent that runs with `python`."""
    array = np.array([[1, 2]], np.float32)
    described = oip.ModelInferRequest.InferInputTensor(
        name=tensor, datatype="FP32", shape=array.shape
    )
    request = oip.ModelInferRequest(
        model_name=engine, inputs=[described], raw_input_contents=[array.tobytes()]
    )
    with running_agent(python, models, state) as (address, _):
        command = [str(python), "-c", CLIENT, address, request.SerializeToString().hex()]
        answer = subprocess.run(command, check=True, capture_output=True, timeout=120)
    response = oip.ModelInferResponse.FromString(answer.stdout)
    values: list[float] = np.frombuffer(response.raw_output_contents[0], np.float32).tolist()
    return values


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
        assert f"install synergai[{runtime}]" in done.stdout


@pytest.fixture(scope="module")
def client_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """An environment with the client alone: its interpreter, and the bytes that the client adds."""
    folder = tmp_path_factory.mktemp("client") / "venv"
    empty = size_bytes(environment(folder, "pip").parents[1])
    python = environment(folder, f"synergai[client] @ file://{wheel}")
    return python, size_bytes(python.parents[1]) - empty


def test_client_can_be_imported_without_other_roles(
    client_environment: tuple[Path, int], tmp_path: Path
) -> None:
    python, _ = client_environment
    code = "import synergai; synergai.Client, synergai.SyncClient"
    subprocess.run([str(python), "-c", code], check=True, cwd=tmp_path, env=bare_environment())


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="one wheel has all programs (docs/decisions/0087-one-wheel-for-all-programs.md)",
)
def test_client_adds_little_to_an_empty_environment(client_environment: tuple[Path, int]) -> None:
    _, added = client_environment
    print(f"the client adds {added / (1 << 20):.1f} MiB")
    assert added <= MAX_CLIENT_BYTES


def size_bytes(folder: Path) -> int:
    """Return the space that the files of a folder take up on disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def test_oldest_supported_onnx_runtime_serves_a_query(
    wheel: Path, models: Path, tmp_path: Path
) -> None:
    requirements = ("onnxruntime==1.18.*", "numpy<2", f"synergai[agent] @ file://{wheel}")
    python = environment(tmp_path / "venv", *requirements, constrained=False)
    assert infer(python, models, "onnxruntime", "x", tmp_path / "state") == [2.0, 4.0]
