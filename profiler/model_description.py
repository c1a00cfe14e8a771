"""Model descriptions, obtained without running the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from synergai.models.formats.inspect import read_contents
from synergai.models.formats.model_files import MODEL_FORMATS, backend_of, digest, size_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.models.formats.model_files import ModelContents


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
    return read_contents(path, backend, signature)
