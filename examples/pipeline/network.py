"""A convolutional network of equal blocks, with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from profiler.cutting.stages import cut_engine, split_engine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.domain import EngineName

ENGINE: Final = "blocks"
INPUT: Final = "image"
OUTPUT: Final = "features"
CHANNELS: Final = 512
SIDE: Final = 7


def build(models: Path, blocks: int) -> None:
    """Write the network into a model directory as the engine `ENGINE`."""
    draw = np.random.default_rng(0)
    shape: list[str | int | None] = ["n", CHANNELS, SIDE, SIDE]
    nodes, weights = [], []
    before = INPUT
    for block in range(blocks):
        kernel = draw.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32)
        kernel *= np.sqrt(2 / (9 * CHANNELS))
        weights.append(numpy_helper.from_array(kernel, f"kernel{block}"))
        inputs, conv = [before, f"kernel{block}"], f"conv{block}"
        nodes.append(helper.make_node("Conv", inputs, [conv], pads=[1, 1, 1, 1]))
        before = seam(block) if block < blocks - 1 else OUTPUT
        nodes.append(helper.make_node("Relu", [conv], [before]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in (INPUT, OUTPUT)
    ]
    graph = helper.make_graph(nodes, ENGINE, ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    folder = models / ENGINE
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    (folder / "engine.toml").write_text('backend = "onnxruntime"\nfile = "model.onnx"\n')


def seam(block: int) -> str:
    """Return the name of the tensor behind a block."""
    return f"relu{block}"


def split(models: Path, cuts: Sequence[int]) -> list[EngineName]:
    """Write the stages between some blocks next to the engine; return their names, in order."""
    engine = cut_engine(models, ENGINE)
    seams = [seam(blocks - 1) for blocks in cuts]
    return [stage.name for stage in split_engine(engine, models, seams, lambda *_: None)]


def image(seed: int) -> dict[str, np.ndarray]:
    """Return the inputs of a query."""
    draw = np.random.default_rng(seed)
    return {INPUT: draw.standard_normal((1, CHANNELS, SIDE, SIDE), dtype=np.float32)}
