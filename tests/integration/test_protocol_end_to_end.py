"""Every datatype and form of the protocol, from an unmodified client through gateway and agent."""

import ast
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from onnx import TensorProto, helper

from demo.local_fleet import LocalFleet
from profiler.zoo import recipes as zoo
from synergai.domain import EngineName
from tests.tiny_onnx import floats, new_model, save_model

FOLDER = Path(__file__).parent
README = Path(__file__).parents[2] / "README.md"
NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
RAW_ONLY = {"FP16", "BF16"}
SHAPE: Sequence[str | int] = ("batch", 2)
TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}


def save(folder: Path, types: Iterable[str]) -> None:
    """An engine that returns an input of each of these datatypes."""
    inputs, outputs, nodes = [], [], []
    for name in sorted(types):
        number = TYPES[name]
        inputs.append(helper.make_tensor_value_info(f"in_{name}", number, SHAPE))
        outputs.append(helper.make_tensor_value_info(f"out_{name}", number, SHAPE))
        nodes.append(helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]))
    save_model(folder / "model.onnx", new_model(nodes, inputs, outputs, opset=16))


def save_classifier(folder: Path) -> None:
    """An engine with a ResNet's input, whose answers are the means of its channels."""
    image, means = floats(["N", 3, 224, 224], "input_tensor:0"), floats(["N", 3, 1, 1], "means")
    node = helper.make_node("GlobalAveragePool", ["input_tensor:0"], ["means"])
    save_model(folder / "model.onnx", new_model([node], image, means))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    models = tmp_path_factory.mktemp("models")
    save(models / "typed", TYPES.keys() - RAW_ONLY)
    save(models / "half", RAW_ONLY)
    save_classifier(models / "resnet50")
    for name in ("onnx_identity", "onnx_digits"):
        zoo.build(EngineName(name), models)
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as started:
        started.start_gateway()
        started.start_agent("w1", models=models, options=["--threads", "1", "--power", "none"])
        started.wait_for_workers(1)
        yield started


@pytest.mark.parametrize(
    ("script", "port"),
    [
        ("every_datatype_script.py", "address"),
        ("every_datatype_http_script.py", "http_address"),
    ],
)
def test_every_datatype_comes_back_as_it_was_sent(
    fleet: LocalFleet, script: str, port: str
) -> None:
    command = [sys.executable, str(FOLDER / script), getattr(fleet, port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_readmes_program_runs_as_it_is_written(fleet: LocalFleet) -> None:
    [program] = re.findall(r"(?s)```python\n(.*?)```", README.read_text())
    assert "127.0.0.1:8001" in program, "but for the address"
    program = program.replace("127.0.0.1:8001", fleet.address)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "{'probabilities': (1, 10)}"
    assert lines[-1] == "SUCCEEDED 500 False"


def test_the_example_notebook_runs_in_a_kernel(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNERGAI_TARGET", fleet.address)
    notebook = nbformat.reads(NOTEBOOK.read_text(), as_version=4)  # type: ignore[no-untyped-call]  # it has hints in part
    NotebookClient(notebook, timeout=60, coalesce_streams=True).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    texts = [output.get("text") or output.data["text/plain"] for output in outputs]
    assert texts[1] == "{'means': (1, 3, 1, 1)}"
    assert ast.literal_eval(texts[2]) == list(range(16))
    assert texts[3].endswith("SUCCEEDED 500\n")
    assert texts[4] == "8"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_readmes_rest_request_runs_as_it_is_written(fleet: LocalFleet) -> None:
    [command] = re.findall(r"(?s)(curl http.*?)```", README.read_text())
    assert "127.0.0.1:8002" in command, "but for the address"
    command = command.replace("127.0.0.1:8002", fleet.http_address)
    answer: dict[str, object] = {}
    deadline = time.monotonic() + 30.0
    while "outputs" not in answer and time.monotonic() < deadline:
        done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
        answer = json.loads(done.stdout)
    assert answer["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [3], "data": [1.0, 2.0, 3.0]}
    ]
