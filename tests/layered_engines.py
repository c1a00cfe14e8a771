"""An engine of equal layers, whose memory can be chosen so that no worker can hold it whole."""

from pathlib import Path
from typing import Final

import numpy as np
from onnx import helper

from tests.tiny_onnx import floats, new_model, save_model

CHANNELS: Final = 512
SIDE: Final = 3


def write_layers(
    folder: Path, layers: int, *, seed: int = 0, routes: str = "", channels: int = CHANNELS
) -> Path:
    """Write an engine of convolutions, and return its folder.

    Runtimes keep the weights of convolutions twice while they load them.
    """
    draw = np.random.default_rng(seed)
    nodes, weights, before = [], {}, "features"
    for layer in range(layers):
        kernel = draw.standard_normal((channels, channels, 3, 3), dtype=np.float32)
        kernel *= np.float32(np.sqrt(2 / (9 * channels)))
        weights[f"kernel{layer}"] = kernel
        conv = helper.make_node(
            "Conv", [before, f"kernel{layer}"], [f"conv{layer}"], pads=[1, 1, 1, 1]
        )
        before = "scores" if layer == layers - 1 else f"layer{layer}"
        nodes += [conv, helper.make_node("Relu", [f"conv{layer}"], [before])]
    first, last = floats(["n", channels, SIDE, SIDE], "features", "scores")
    save_model(folder / "model.onnx", new_model(nodes, [first], [last], weights))
    setting = f'routes = "{routes}"\n' if routes else ""
    (folder / "engine.toml").write_text(f'backend = "onnxruntime"\nfile = "model.onnx"\n{setting}')
    return folder


def features(seed: int, rows: int = 1, channels: int = CHANNELS) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, channels, SIDE, SIDE), dtype=np.float32)
