"""Every datatype and form of the protocol, by an unmodified client, through gateway and agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from onnx import TensorProto, helper

from synergai.testing import LocalFleet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCRIPT = Path(__file__).with_name("every_datatype_script.py")
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
    graph = helper.make_graph(nodes, "every", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def test_every_datatype_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    save(tmp_path / "models" / "typed", TYPES.keys() - RAW_ONLY)
    save(tmp_path / "models" / "half", RAW_ONLY)
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        options = ["--threads", "1", "--power", "none"]
        fleet.start_agent("w1", models=tmp_path / "models", options=options)
        fleet.wait_for_workers(1)
        done = subprocess.run(
            [sys.executable, str(SCRIPT), fleet.address],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
