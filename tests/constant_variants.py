"""A family whose variants always answer the same class, after layers that do not matter."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_WIDTH: Final = 256


def write_family(
    folder: Path, layers: Mapping[str, int], labels: Sequence[int] = (0, 1, 2)
) -> None:
    """Write the folder of an engine.

    Args:
        folder: the folder; created.
        layers: number of layers of each variant. The first one answers class 0, the second 1, and
            the third 2.
        labels: labels of the samples.
    """
    folder.mkdir(parents=True)
    for answer, (name, number) in enumerate(layers.items()):
        _save_variant(folder / f"{name}.onnx", answer, number)
    np.savez(
        folder / "samples.npz", x=np.zeros((len(labels), 3), np.float32), labels=np.array(labels)
    )
    write_definition(folder, layers)


def write_definition(folder: Path, variants: Iterable[str]) -> None:
    """Write the ``engine.toml`` of a family, at once."""
    text = "".join(f'[[variants]]\nname = "{name}"\nfile = "{name}.onnx"\n' for name in variants)
    (folder / "engine.new").write_text(text)
    (folder / "engine.new").replace(folder / "engine.toml")


def _save_variant(path: Path, answer: int, layers: int) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy")
    weights = np.random.default_rng(0)
    nodes, constants = [], []
    hidden, width = "x", 3
    for layer in range(layers):
        matrix = weights.random((width, _WIDTH), np.float32)
        constants.append(numpy_helper.from_array(matrix, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [hidden, f"w{layer}"], [f"h{layer}"]))
        hidden, width = f"h{layer}", _WIDTH
    constants += [
        numpy_helper.from_array(np.zeros((width, 3), np.float32), "none"),
        numpy_helper.from_array(np.eye(3, dtype=np.float32)[[answer]], "class"),
    ]
    nodes += [
        helper.make_node("MatMul", [hidden, "none"], ["nothing"]),
        helper.make_node("Add", ["nothing", "class"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "constant", [x], [y], constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path
    )
