"""An engine of equal layers, whose memory can be chosen so that no worker can hold it whole."""

from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH: Final = 1024
LAYER_BYTES: Final = 4 * WIDTH * WIDTH


def write_layers(folder: Path, layers: int, *, seed: int = 0, routes: str = "") -> Path:
    """Write an engine of fully connected layers into its folder, and return that."""
    draw = np.random.default_rng(seed)
    nodes, weights, before = [], [], "features"
    for layer in range(layers):
        kernel = draw.standard_normal((WIDTH, WIDTH), dtype=np.float32) * np.sqrt(2 / WIDTH)
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"kernel{layer}"))
        nodes.append(helper.make_node("MatMul", [before, f"kernel{layer}"], [f"product{layer}"]))
        before = "scores" if layer == layers - 1 else f"layer{layer}"
        nodes.append(helper.make_node("Relu", [f"product{layer}"], [before]))
    shape: list[str | int | None] = ["n", WIDTH]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in ("features", "scores")
    ]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    setting = f'routes = "{routes}"\n' if routes else ""
    (folder / "engine.toml").write_text(f'backend = "onnxruntime"\nfile = "model.onnx"\n{setting}')
    return folder


def features(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((1, WIDTH), dtype=np.float32)
