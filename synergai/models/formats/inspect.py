"""Checks of model files without their runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput
from synergai.models.formats.model_files import backend_of, is_saved_model, map_file
from synergai.models.formats.tensorflow_file import WireMessage

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.models.formats.model_files import ModelContents

# Fields of onnx.proto: graph of a model, its ends, and the type of a value.
_GRAPH: Final = 7
_INPUT, _OUTPUT = 11, 12
_NAME, _TYPE, _TENSOR_TYPE, _SHAPE = 1, 2, 1, 2

_TFLITE_IDENTIFIER: Final = b"TFL3"
"""At offset 4 of a file."""


def check(path: Path, signature: str = "") -> None:
    """Check a model as far as possible without a runtime and without the ``onnx`` package."""
    backend = backend_of(path)
    try:
        if backend == "tensorflow":
            read_contents(path, signature)
        elif backend == "tflite":
            _check_tflite(path)
        elif backend == "onnxruntime":
            _check_onnx(path)
    except OSError as error:
        raise InvalidInput(f"{path.name} cannot be read: {error.strerror}") from error


def _check_onnx(path: Path) -> None:
    """Check that a file is a whole message with a graph."""
    try:
        has_graph = any(WireMessage(memoryview(map_file(path))).byte_strings(_GRAPH))
    except DecodeError:
        has_graph = False
    if not has_graph:
        raise InvalidInput(f"{path.name} is damaged, or not an ONNX model")


def _check_tflite(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(4 + len(_TFLITE_IDENTIFIER))
    if start[4:] != _TFLITE_IDENTIFIER:
        raise InvalidInput(f"{path.name} is damaged, or not a TFLite file")


def unranked_tensors(path: Path) -> frozenset[str]:
    """Return the inputs and outputs of an ONNX file without a shape, whose rank is unknown."""
    graph = WireMessage(memoryview(map_file(path))).message(_GRAPH)
    return frozenset(
        value.string(_NAME)
        for value in (*graph.messages(_INPUT), *graph.messages(_OUTPUT))
        if not list(value.message(_TYPE).message(_TENSOR_TYPE).byte_strings(_SHAPE))
    )


def read_contents(path: Path, signature: str) -> ModelContents:
    """Read and check a model of TensorFlow, and one of its signatures."""
    from synergai.models.formats.tensorflow_file import read_frozen_graph, read_saved_model

    if is_saved_model(path):
        return read_saved_model(path, signature)
    return read_frozen_graph(path)
