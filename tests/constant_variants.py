"""A family whose variants always answer the same class, after layers that do not matter."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from onnx import helper

from tests.tiny_onnx import floats, new_model, save_model

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
    weights = np.random.default_rng(0)
    nodes, constants = [], {}
    hidden, width = "x", 3
    for layer in range(layers):
        constants[f"w{layer}"] = weights.random((width, _WIDTH), np.float32)
        nodes.append(helper.make_node("MatMul", [hidden, f"w{layer}"], [f"h{layer}"]))
        hidden, width = f"h{layer}", _WIDTH
    constants["none"] = np.zeros((width, 3), np.float32)
    constants["class"] = np.eye(3, dtype=np.float32)[[answer]]
    nodes += [
        helper.make_node("MatMul", [hidden, "none"], ["nothing"]),
        helper.make_node("Add", ["nothing", "class"], ["y"]),
    ]
    x, y = floats([1, 3], "x", "y")
    save_model(path, new_model(nodes, [x], [y], constants))
