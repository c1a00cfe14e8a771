"""Model files by their format: what runs them, which files they are, and their digest.

ONNX files, TFLite files and frozen TensorFlow graphs are one file each. A SavedModel is a folder
with a ``saved_model.pb`` in it; it may be the engine's own folder, whose ``engine.toml`` and
``samples.npz`` are then no part of the model.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from synergai.domain import TensorSpec

BACKENDS: Final = {".onnx": "onnxruntime", ".tflite": "tflite", ".pb": "tensorflow"}
"""Backend by the suffix of a model file; a SavedModel's is that of its ``saved_model.pb``."""
FROZEN_GRAPH_SUFFIX: Final = ".pb"
SAVED_MODEL_FILE: Final = "saved_model.pb"
DEFINITION_FILE: Final = "engine.toml"
SAMPLES_FILE: Final = "samples.npz"
MODEL_FORMATS: Final = f"{', '.join(BACKENDS)}, or a SavedModel's folder"
"""What can be served, for messages."""
MAX_MODEL_BYTES: Final = 2 << 30
"""What one protobuf message, and so one ONNX file, can hold."""
MAX_MODEL_FILES: Final = 10_000
"""Most files of one SavedModel: somebody's home directory is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContents:
    """What a model says about itself.

    Attributes:
        format: what kind of file it is, and of which version.
        inputs: in the Open Inference Protocol's words; the datatype of what that cannot carry is
            ``unknown``.
        outputs: likewise; also unknown where only running the model would tell.
        parameters: how many numbers its weights are.
        producer: the program that wrote it; empty if it does not say.
        external_data: weights lie in other files.
    """

    format: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    producer: str = ""
    external_data: bool = False


def is_saved_model(path: Path) -> bool:
    """Whether `path` is a SavedModel's folder."""
    return (path / SAVED_MODEL_FILE).is_file()


def is_frozen_graph(path: Path) -> bool:
    """Whether `path` is a frozen TensorFlow graph, which does not tell its inputs and outputs."""
    return path.suffix == FROZEN_GRAPH_SUFFIX and not is_saved_model(path)


def backend_of(path: Path) -> str:
    """The backend that runs the model at `path`; empty if it does not tell."""
    return BACKENDS.get(FROZEN_GRAPH_SUFFIX if is_saved_model(path) else path.suffix, "")


def find_models(folder: Path) -> list[Path]:
    """What in an engine's folder looks like a model, sorted; maybe the folder itself.

    Raises:
        OSError: it cannot be read.
    """
    found = [path for path in folder.iterdir() if backend_of(path) and path.name[0] != "."]
    if is_saved_model(folder):
        # Its further .pb files are parts of it.
        return sorted([folder, *(path for path in found if not is_frozen_graph(path))])
    return sorted(found)


def list_files(model: Path) -> list[Path]:
    """The files of the model at `model`, sorted by their paths: itself, or all in its folder.

    Raises:
        InvalidInput: it is not there, or something in it is neither a file nor a folder.
        OSError: it cannot be read.
    """
    if not model.is_dir():
        if not model.is_file():
            raise InvalidInput(f"the model file {model.name!r} is not there")
        return [model]
    if not is_saved_model(model):
        raise InvalidInput(f"the folder {model.name!r} is no SavedModel: no {SAVED_MODEL_FILE}")
    own = {model / DEFINITION_FILE, model / SAMPLES_FILE}
    found: list[Path] = []
    for folder, subfolders, names in os.walk(model, onerror=_raise):
        for name in subfolders:
            # Not walked into, while the runtime would follow it.
            if (link := Path(folder, name)).is_symlink():
                raise InvalidInput(f"{link.name!r} is a link to a folder; put the folder there")
        found += {Path(folder, name) for name in names} - own
        if len(found) > MAX_MODEL_FILES:
            raise InvalidInput(f"{model.name!r} has more than {MAX_MODEL_FILES:,} files")
    for path in found:
        if not path.is_file():  # to read from a named pipe would be to wait for ever
            raise InvalidInput(f"{path.name!r} is no regular file")
    return sorted(found)


def size_bytes(model: Path) -> int:
    """Size of the model's files together.

    Raises:
        InvalidInput: it is empty or too large, or as for `list_files`.
        OSError: it cannot be read.
    """
    size = sum(path.stat().st_size for path in list_files(model))
    if not 0 < size <= MAX_MODEL_BYTES:
        raise InvalidInput(f"{model.name} has {size:,} bytes; a model has 1 to {MAX_MODEL_BYTES:,}")
    return size


def map_file(file: Path) -> bytes | mmap.mmap:
    """The file's content, read as it is looked at; it is unmapped when nobody looks any more.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        if not file.stat().st_size:  # of nothing there is no map
            return b""
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def digest(model: Path) -> str:
    """Sha256 of the model, hexadecimal.

    Of a folder it is the sha256 of one entry per file, in order of their paths: the path
    relative to the folder, with slashes and in UTF-8; a zero byte; and the file's own sha256,
    32 bytes.

    Raises:
        InvalidInput: as for `list_files`.
        OSError: it cannot be read.
    """
    if not model.is_dir():
        return _sha256(model).hex()
    whole = hashlib.sha256()
    for path in list_files(model):
        name = os.fsencode(path.relative_to(model).as_posix())
        whole.update(name + b"\0" + _sha256(path))
    return whole.hexdigest()


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _raise(error: OSError) -> None:
    raise error
