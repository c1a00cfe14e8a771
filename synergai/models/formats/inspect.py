"""Model descriptions, obtained without running the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput
from synergai.models.formats.model_files import (
    MODEL_FORMATS,
    backend_of,
    digest,
    is_saved_model,
    map_file,
    size_bytes,
)
from synergai.models.formats.tensorflow_file import WireMessage

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.models.formats.model_files import ModelContents

# Fields of onnx.proto: graph of a model, its ends, and the type of a value.
_GRAPH: Final = 7
_INPUT, _OUTPUT = 11, 12
_NAME, _TYPE, _TENSOR_TYPE, _SHAPE = 1, 2, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model on disk.

    Attributes:
        contents: The model's own metadata.
        digest: sha256 of the model, hexadecimal.
    """

    backend: str
    contents: ModelContents
    size_bytes: int
    digest: str


def describe(path: Path, signature: str = "") -> ModelDescription:
    """Read and check a model file or a SavedModel's folder, and one of its signatures."""
    backend = backend_of(path)
    if not backend:
        raise InvalidInput(f"{path} is not a model; supported are {MODEL_FORMATS}")
    try:
        size = size_bytes(path)
        return ModelDescription(
            backend=backend,
            contents=_read(path, backend, signature),
            size_bytes=size,
            digest=digest(path),
        )
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error


def check(path: Path, signature: str = "") -> None:
    """Check a model as far as possible without a runtime and without the ``onnx`` package."""
    backend = backend_of(path)
    try:
        if backend in ("tflite", "tensorflow"):
            _read(path, backend, signature)
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


def unranked_tensors(path: Path) -> frozenset[str]:
    """Return the inputs and outputs of an ONNX file without a shape, whose rank is unknown."""
    graph = WireMessage(memoryview(map_file(path))).message(_GRAPH)
    return frozenset(
        value.string(_NAME)
        for value in (*graph.messages(_INPUT), *graph.messages(_OUTPUT))
        if not list(value.message(_TYPE).message(_TENSOR_TYPE).byte_strings(_SHAPE))
    )


def _read(path: Path, backend: str, signature: str) -> ModelContents:
    # Imported lazily: only ONNX files need the ``onnx`` package.
    if backend == "onnxruntime":
        from synergai.models.formats.onnx_file import read_onnx

        return read_onnx(path)
    if backend == "tflite":
        from synergai.models.formats.tflite_file import read_tflite

        return read_tflite(path, signature)
    from synergai.models.formats.tensorflow_file import read_frozen_graph, read_saved_model

    if is_saved_model(path):
        return read_saved_model(path, signature)
    return read_frozen_graph(path)
