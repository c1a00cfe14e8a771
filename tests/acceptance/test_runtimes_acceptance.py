"""Runtimes that need packages beyond the tests': custom operators, and tflite-runtime."""

import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
from ai_edge_litert.schema_py_generated import TensorType
from onnx import TensorProto, helper

import synergai
from demo.local_fleet import LocalFleet
from profiler.zoo import recipes as zoo
from synergai.domain import EngineName
from tests.tiny_onnx import new_model, save_model
from tests.tiny_tflite import save_reshape, save_sum, save_texts

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("tflite_runtime_script.py")
EXTENSIONS = "onnxruntime-extensions==0.15.2"


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def save_upper(path: Path) -> None:
    """Save a model whose only operator is one of onnxruntime-extensions."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in "xy")
    node = helper.make_node("StringUpper", ["x"], ["y"], domain="ai.onnx.contrib")
    save_model(path, new_model([node], [x], [y], domain=node.domain))


async def test_custom_operators_are_those_of_the_agents_configuration(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    install = ("install", "--quiet", "--no-deps", "--target", str(packages), EXTENSIONS)
    run(sys.executable, "-m", "pip", *install)
    [library] = packages.glob("onnxruntime_extensions/*.so")
    save_upper(tmp_path / "models" / "upper" / "m.onnx")
    zoo.build(EngineName("onnx_identity"), tmp_path / "models")
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        operators = ("--onnx-operators", str(library))
        fleet.start_agent("with", models=tmp_path / "models", options=operators)
        fleet.start_agent("without", models=tmp_path / "models")
        fleet.wait_for_workers(2)
        async with synergai.Client(fleet.address) as client:
            result = await client.infer("upper", {"x": np.array(["abc"], object)})
            assert result["y"].tolist() == [b"ABC"]
            faults = {
                str(worker.id): engine.fault
                for worker in await client.workers()
                for engine in worker.engines
                if engine.name == "upper"
            }
        assert faults["with"] == ""
        assert "StringUpper(-1) is not a registered function/op" in faults["without"]


def test_tflite_files_are_served_by_tflite_runtime(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name in ("sum", "int8", "texts", "pair", "signed", "any"):
        (models / name).mkdir(parents=True)
    save_sum(models / "sum" / "m.tflite")
    save_sum(models / "int8" / "m.tflite", int8=True)
    save_texts(models / "texts" / "m.tflite", -1, 1)
    save_texts(models / "pair" / "m.tflite", 2)
    save_reshape(models / "any" / "m.tflite", TensorType.FLOAT32, [], [-1])
    save_sum(models / "signed" / "m.tflite", signature="train")
    (models / "signed" / "engine.toml").write_text('signature = "train"')
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    constraints = ROOT / "deploy" / "constraints-jetpack5.txt"
    wheel = f"{ROOT}[agent,tflite-runtime]"
    run(python, "-m", "pip", "install", "--quiet", "-c", str(constraints), wheel)
    run(python, str(SCRIPT), str(models))
