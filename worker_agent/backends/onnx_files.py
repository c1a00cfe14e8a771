"""Check of the external weight files of an ONNX model.

A model file may refer to weights in other files, and older runtimes open any path it names. The
model is parsed on the wire level, without the ``onnx`` package, which workers need not have.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from synergai.errors import EngineUnusable
from synergai.protocol.request_codec import LENGTH_DELIMITED, iter_fields

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Fields of onnx.proto on a path to a tensor, by message: field number and message of its content.
_CHILDREN: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse tensor",
        23: "sparse tensor",
    },
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_MAX_DEPTH: Final = 100
"""Nesting limit of protobuf parsers."""


def check_files(model: Path) -> None:
    """Check that all external weights of the ONNX file `model` are in its folder."""
    folder = model.parent.resolve()
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            entries = list(_entries(memoryview(content), "model"))
        except (DecodeError, UnicodeDecodeError):
            raise EngineUnusable(f"{model.name} is damaged, or not an ONNX model") from None
    for key, value in entries:
        if key == "location" and not (folder / value).resolve().is_relative_to(folder):
            raise EngineUnusable(
                f"{model.name} refers to weights in {value!r}, which is outside of its folder"
            )


def _entries(data: memoryview, kind: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield keys and values of the ``external_data`` entries of all tensors."""
    if depth > _MAX_DEPTH:
        raise DecodeError("nested too deeply")
    # Release each view when done: the mapped file cannot be closed while views exist.
    with data:
        for number, wire_type, _, content, end in iter_fields(data):
            child = _CHILDREN[kind].get(number)
            if child is None or wire_type != LENGTH_DELIMITED:
                continue
            if child == "entry":
                yield _entry(bytes(data[content:end]))
            else:
                yield from _entries(data[content:end], child, depth + 1)


def _entry(data: bytes) -> tuple[str, str]:
    texts = {
        number: data[content:end].decode()
        for number, _, _, content, end in iter_fields(memoryview(data))
    }
    return texts.get(1, ""), texts.get(2, "")
