"""Drawn engines whose first tensors are large, and whose last blocks have most of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.drawn_changes import WHOLE_S, Network

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.drawn_changes import Machine

BYTES: Final = 4
CHANNELS: Final = (20, 128, 448)
SIDES: Final = (40, 4)
EARLY: Final = 2
LATE: Final = 4
LEAST: Final = 8e6
"""Multiplications that a block takes at least as long as."""
INPUT: Final = {"x": np.zeros((1, CHANNELS[0], SIDES[0], SIDES[0]), np.float32)}


def _kernels() -> Iterator[tuple[int, int, int, int]]:
    """Yield the channels in and out, the width of the kernel and the stride of each block."""
    given, wide, deep = CHANNELS
    yield given, wide, 1, 1
    for _ in range(EARLY - 1):
        yield wide, wide, 1, 1
    yield wide, deep, 1, SIDES[0] // SIDES[1]
    for _ in range(LATE):
        yield deep, deep, 3, 1


def draw_network(draw: random.Random, name: str) -> Network:
    """Draw the times of the blocks of an engine."""
    given, wide, deep = CHANNELS
    large, small = (BYTES * side**2 for side in SIDES)
    sides = [SIDES[0]] * (1 + EARLY) + [SIDES[1]] * LATE
    shares = [
        draw.uniform(0.7, 1.4) * (LEAST + ins * outs * (width * side / stride) ** 2)
        for (ins, outs, width, stride), side in zip(_kernels(), sides, strict=True)
    ]
    return Network(
        name,
        sizes=(large * given, *[large * wide] * EARLY, *[small * deep] * (1 + LATE)),
        weights=tuple(BYTES * ins * outs * width**2 for ins, outs, width, _ in _kernels()),
        seconds=tuple(WHOLE_S * share / sum(shares) for share in shares),
    )


def seconds_by_cut(network: Network, machine: Machine) -> tuple[float, ...]:
    """Return the time before each cut: one in the middle and one at the end of each block."""
    heads = [0.0]
    for seconds in network.seconds_on(machine):
        heads += [heads[-1] + seconds / 2, heads[-1] + seconds]
    return tuple(heads)


def write_network(folder: Path, *, seed: int) -> None:
    """Write a network with drawn weights, which may be cut if that pays."""
    draw = np.random.default_rng(seed)
    nodes, weights, before = [], [], "x"
    last = EARLY + LATE
    for block, (ins, outs, width, stride) in enumerate(_kernels()):
        kernel = draw.standard_normal((outs, ins, width, width), dtype=np.float32)
        kernel *= np.float32(np.sqrt(2 / (ins * width**2)))
        weights.append(numpy_helper.from_array(kernel, f"kernel{block}"))
        conv = helper.make_node(
            "Conv",
            [before, f"kernel{block}"],
            [f"conv{block}"],
            pads=[width // 2] * 4,
            strides=[stride] * 2,
        )
        before = "y" if block == last else f"relu{block}"
        nodes += [conv, helper.make_node("Relu", [f"conv{block}"], [before])]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", channels, side, side])
        for name, channels, side in zip("xy", CHANNELS[::2], SIDES, strict=True)
    ]
    graph = helper.make_graph(nodes, "blocks", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    (folder / "engine.toml").write_text(
        'backend = "onnxruntime"\nfile = "model.onnx"\nroutes = "auto"\n'
    )
