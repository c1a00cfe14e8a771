"""Model descriptions, obtained without running the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from synergai.models.formats.inspect import check, read_contents
from synergai.models.formats.model_files import (
    MODEL_FORMATS,
    ModelContents,
    backend_of,
    digest,
    size_bytes,
)
from synergai.models.formats.tflite_tensors import tensor_details, tensor_specs
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from pathlib import Path


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


def _read(path: Path, backend: str, signature: str) -> ModelContents:
    if backend == "onnxruntime":
        from profiler.onnx_file import read_onnx  # only ONNX files need the package onnx

        return read_onnx(path)
    if backend == "tflite":
        return _read_tflite(path, signature)
    return read_contents(path, signature)


def _read_tflite(path: Path, signature: str) -> ModelContents:
    """Have LiteRT describe a file; its predecessor may crash on a damaged one."""
    check(path)
    contents = ModelContents(format="TensorFlow Lite", inputs=(), outputs=())
    try:
        runtime = import_module("ai_edge_litert.interpreter")
    except ImportError:
        note = f"its tensors are shown where LiteRT is installed; {pip_install('tflite')}"
        return replace(contents, notes=(note,))
    try:
        interpreter = runtime.Interpreter(model_content=path.read_bytes())
    except (RuntimeError, ValueError) as error:
        raise InvalidInput(f"TensorFlow Lite cannot load {path.name}: {error}") from None
    inputs, outputs = map(tensor_specs, tensor_details(interpreter, path, signature))
    return replace(contents, inputs=inputs, outputs=outputs)
