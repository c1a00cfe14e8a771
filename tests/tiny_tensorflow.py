"""Writer of tiny frozen graphs and SavedModels that needs no TensorFlow."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from synergai.wire.request_codec import field_prefix

needs_tensorflow = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="TensorFlow has no wheels for Python 3.14"
)
FLOAT: Final = 1
STRING: Final = 7


def of_tensorflow(*engines: str) -> list[Any]:
    """Parameters of a test that needs TensorFlow for these engines."""
    return [pytest.param(engine, marks=needs_tensorflow) for engine in engines]


def _field(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return field_prefix(number, len(data)) + data


def _number(number: int, value: int) -> bytes:
    encoded, value = bytearray([number << 3]), value & (1 << 64) - 1
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _shape(*sizes: int) -> bytes:
    return b"".join(_field(2, _number(1, size)) for size in sizes)


FLOAT_TYPE: Final = _number(6, FLOAT)
"""The attribute value for float tensors."""
STRING_TYPE: Final = _number(6, STRING)


def node(name: str, operation: str, *inputs: str, **attributes: bytes) -> bytes:
    """Return a node as a field of a GraphDef; attributes are serialised AttrValues."""
    parts = [_field(1, name), _field(2, operation), *(_field(3, each) for each in inputs)]
    parts += [_field(5, _field(1, key) + _field(2, value)) for key, value in attributes.items()]
    return _field(1, b"".join(parts))


def constant(name: str, kind: int, *shape: int) -> bytes:
    """Return a Const node without its content."""
    tensor = _number(1, kind) + _field(2, _shape(*shape))
    return node(name, "Const", dtype=_number(6, kind), value=_field(8, tensor))


def variable(name: str, kind: int, *shape: int) -> bytes:
    return node(name, "VarHandleOp", dtype=_number(6, kind), shape=_field(7, _shape(*shape)))


def graph(*, matrix: int = 0) -> bytes:
    """Return a GraphDef: y = x + x, with x of [n, 2]; or y = x @ w, with a square w of ones."""
    if not matrix:
        shape = _field(7, _shape(-1, 2))
        return node("x", "Placeholder", dtype=FLOAT_TYPE, shape=shape) + node(
            "y", "AddV2", "x", "x", T=FLOAT_TYPE
        )
    tensor = _number(1, FLOAT) + _field(2, _shape(matrix, matrix)) + _field(5, b"\0\0\x80\x3f")
    return (
        node("x", "Placeholder", dtype=FLOAT_TYPE, shape=_field(7, _shape(-1, matrix)))
        + node("w", "Const", dtype=FLOAT_TYPE, value=_field(8, tensor))
        + node("y", "MatMul", "x", "w", T=FLOAT_TYPE)
    )


def saved_model(
    graph_definition: bytes,
    signature: str = "serving_default",
    outputs: Sequence[str] = ("b",),
    shape: Sequence[int] | None = (-1, 2),
) -> bytes:
    """Return a SavedModel of a graph from ``x:0``, named a in its signature, to ``y:0``.

    Args:
        graph_definition: the graph.
        signature: name of the signature.
        outputs: names of ``y:0`` in it.
        shape: shape of all tensors; None for an unknown rank.
    """
    sizes = _number(3, 1) if shape is None else _shape(*shape)
    sides = [(1, "a", "x:0"), *((2, output, "y:0") for output in outputs)]
    tensors = b"".join(
        _field(
            side,
            _field(1, called) + _field(2, _field(1, name) + _number(2, FLOAT) + _field(3, sizes)),
        )
        for side, called, name in sides
    )
    definition = tensors + _field(3, "tensorflow/serving/predict")
    meta_graph = (
        _field(1, _field(4, "serve") + _field(5, "2.0.0"))
        + _field(2, graph_definition)
        + _field(5, _field(1, signature) + _field(2, definition))
    )
    return _number(1, 1) + _field(2, meta_graph)


def save_saved_model(folder: Path) -> Path:
    """Save a model of b = a + a, without variables."""
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(saved_model(graph()))
    return folder
