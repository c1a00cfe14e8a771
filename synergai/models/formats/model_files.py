"""Model files: their backend, their parts, and their digest.

ONNX files, TFLite files and frozen TensorFlow graphs are single files. An ONNX file may name others
with its weights: it is parsed on the wire level, without the ``onnx`` package, which workers need
not have. A SavedModel is a folder with a ``saved_model.pb``; it may be the engine's own folder,
whose ``engine.toml`` and ``samples.npz`` are then not part of the model.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput
from synergai.wire.request_codec import LENGTH_DELIMITED, iter_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import TypeAlias

    from synergai.domain import TensorSpec

    Ends: TypeAlias = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]


BACKENDS: Final = {".onnx": "onnxruntime", ".tflite": "tflite", ".pb": "tensorflow"}
"""Backend by file suffix; a SavedModel uses that of its ``saved_model.pb``."""
FROZEN_GRAPH_SUFFIX: Final = ".pb"
SAVED_MODEL_FILE: Final = "saved_model.pb"
DEFINITION_FILE: Final = "engine.toml"
SAMPLES_FILE: Final = "samples.npz"
MODEL_FORMATS: Final = f"{', '.join(BACKENDS)}, or a SavedModel's folder"
"""Supported formats, for messages."""
_MAX_NAMED: Final = 5
"""Files that a fault names."""
MAX_MODEL_BYTES: Final = 2 << 30
"""Limit of a protobuf message, and so of an ONNX file."""
MAX_MODEL_FILES: Final = 10_000
"""Limit of files per SavedModel, against folders that were chosen by mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContents:
    """A model's own metadata.

    Attributes:
        format: File format and version.
        inputs: As Open Inference Protocol tensors; the datatype is ``unknown`` where the protocol
            has none.
        outputs: Likewise; the datatype is also ``unknown`` if only running the model reveals it.
        producer: The program that wrote the model; empty if unknown.
        external_data: Whether weights are stored in other files.
        notes: What its users may not expect, a sentence each.
    """

    format: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    producer: str = ""
    external_data: bool = False
    notes: tuple[str, ...] = ()


def is_saved_model(path: Path) -> bool:
    return (path / SAVED_MODEL_FILE).is_file()


def is_frozen_graph(path: Path) -> bool:
    """Return whether `path` is a frozen TensorFlow graph, which does not declare its tensors."""
    return path.suffix == FROZEN_GRAPH_SUFFIX and not is_saved_model(path)


def has_signatures(path: Path) -> bool:
    """Return whether models of this format have signatures to choose from."""
    return path.suffix == ".tflite" or is_saved_model(path)


def check_signature(path: Path, signatures: Collection[str], name: str) -> None:
    """Check that the model at `path` has a signature of this name."""
    if name not in signatures:
        raise InvalidInput(
            f"{path.name} has no signature {name!r}; it has: "
            f"{', '.join(sorted(signatures)) or 'none'}; choose one with --signature or "
            f'signature = "…" in {DEFINITION_FILE}'
        )


def is_version(name: str) -> bool:
    """Return whether a folder of this name in an engine's folder is meant as a version of it."""
    return name.isascii() and name.isdecimal()


def backend_of(path: Path) -> str:
    """Return the backend for the model at `path`; empty if unknown."""
    return BACKENDS.get(FROZEN_GRAPH_SUFFIX if is_saved_model(path) else path.suffix, "")


def find_models(folder: Path) -> list[Path]:
    """Return the models in an engine's folder, sorted; a SavedModel may be the folder itself.

    Folders of its versions are left out.
    """
    found = [
        path
        for path in folder.iterdir()
        if path.name[0] != "." and not is_version(path.name) and backend_of(path)
    ]
    if is_saved_model(folder):
        # Other .pb files belong to the SavedModel.
        return sorted([folder, *(path for path in found if not is_frozen_graph(path))])
    return sorted(found)


def list_files(model: Path) -> list[Path]:
    if not model.is_dir():
        if not model.is_file():
            raise InvalidInput(f"the model file {model.name!r} does not exist")
        if model.suffix != ".onnx":
            return [model]
        try:
            weights = weight_files(model)
        except Damaged:  # which is reported where it is loaded
            return [model]
        if taken := {model.parent / DEFINITION_FILE, model.parent / SAMPLES_FILE} & set(weights):
            raise InvalidInput(
                f"{model.name} refers to weights in {min(taken).name!r}, which names another file "
                "of an engine; export the model with another file for its weights"
            )
        return [model, *weights]
    if not is_saved_model(model):
        raise InvalidInput(
            f"the folder {model.name!r} is not a SavedModel: it has no {SAVED_MODEL_FILE}"
        )
    own = {model / DEFINITION_FILE, model / SAMPLES_FILE}
    found: list[Path] = []
    for folder, subfolders, names in os.walk(model, onerror=_raise):
        if Path(folder) == model:  # it may be the engine's folder, with further versions in it
            subfolders[:] = [name for name in subfolders if not is_version(name)]
        for name in subfolders:
            # os.walk does not follow it, but the runtime would.
            if (link := Path(folder, name)).is_symlink():
                raise InvalidInput(
                    f"{link.name!r} is a link to a folder; replace it with the folder"
                )
        found += {Path(folder, name) for name in names} - own
        if len(found) > MAX_MODEL_FILES:
            raise InvalidInput(f"{model.name!r} has more than {MAX_MODEL_FILES:,} files")
    for path in found:
        if not path.is_file():  # reading a named pipe would block
            raise InvalidInput(f"{path.name!r} is not a regular file")
    return sorted(found)


def size_bytes(model: Path) -> int:
    """Return the total size of a model's files."""
    size = sum(path.stat().st_size for path in list_files(model))
    if not 0 < size <= MAX_MODEL_BYTES:
        raise InvalidInput(f"{model.name} has {size:,} bytes; must be 1 to {MAX_MODEL_BYTES:,}")
    return size


def map_file(file: Path) -> bytes | mmap.mmap:
    """Map a file into memory; the mapping lives as long as the returned object."""
    with file.open("rb") as opened:
        if not file.stat().st_size:  # an empty file cannot be mapped
            return b""
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def digest(model: Path) -> str:
    """Return the sha256 of a model, hexadecimal.

    For a model of several files this is the sha256 over one entry per file, sorted by path: the
    path relative to their folder with slashes in UTF-8, a zero byte, and the file's own sha256 (32
    bytes).
    """
    files = list_files(model)
    if files == [model]:
        return _sha256(model).hex()
    whole = hashlib.sha256()
    folder = model if model.is_dir() else model.parent
    for path in sorted(files):
        name = os.fsencode(path.relative_to(folder).as_posix())
        whole.update(name + b"\0" + _sha256(path))
    return whole.hexdigest()


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _raise(error: OSError) -> None:
    raise error


def find_only_model(folder: Path) -> Path:
    """Return the model file of a folder that has no other one."""
    models = find_models(folder)
    match models:
        case [model]:
            return model
        case []:
            raise InvalidInput(f"the folder has no model file ({MODEL_FORMATS})")
        case _:
            names = [path.name for path in models]
            if len(names) > _MAX_NAMED:
                names[_MAX_NAMED:] = [f"and {len(names) - _MAX_NAMED} more"]
            raise InvalidInput(
                f"the folder has several model files ({', '.join(names)}); "
                f'set file = "…" in {DEFINITION_FILE}'
            )


_MAX_PATH: Final = 1024
_MAX_PARTS: Final = 16
_MAX_NAME_BYTES: Final = 255
"""Limit of most file systems."""
PATH_RULE: Final = (
    f"relative and printable, with at most {_MAX_PATH:,} characters and {_MAX_PARTS} parts, and "
    "not hidden"
)
"""What a path must be, for messages."""


def is_engine_path(path: str) -> bool:
    """Return whether a file in an engine's folder may have this path, which is relative to it."""
    parts = path.split("/")
    return not (
        len(path) > _MAX_PATH
        or len(parts) > _MAX_PARTS
        or not path.isprintable()
        or "\\" in path
        or any(part in ("", ".", "..") or _too_long(part) for part in parts)
        or parts[0].startswith(".")
    )


def _too_long(part: str) -> bool:
    return len(part.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES


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
MAX_WEIGHT_FILES: Final = 9_000
"""Limit per model: an engine has at most 10,000 files, with its samples and others."""
_MAX_DEPTH: Final = 100
"""Nesting limit of protobuf parsers."""


class Damaged(InvalidInput):
    """A file that cannot be parsed; what it names is not known."""


def weight_files(model: Path) -> list[Path]:
    """Return the files with external weights of the ONNX file `model`, sorted; often none.

    All of them are regular files in its folder, or links from there to the folder that `model` is
    a link to: caches of downloads keep the files of a repository together under other names.
    """
    stat = model.stat()
    locations = _locations(model, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if len(locations) > MAX_WEIGHT_FILES:
        raise InvalidInput(
            f"{model.name} has its weights in {len(locations):,} files; at most "
            f"{MAX_WEIGHT_FILES:,} are possible: export it with all of them in one file"
        )
    folder = model.parent.resolve()
    homes = (folder, Path(os.path.realpath(model)).parent)
    for location in locations:
        path = PurePosixPath(location)
        refers = f"{model.name} refers to weights in {location!r}, which"
        if path.is_absolute() or ".." in path.parts:
            raise InvalidInput(f"{refers} is outside of its folder")
        if not is_engine_path(path.as_posix()):
            raise InvalidInput(
                f"{refers} cannot be the name of a file of an engine: it must be {PATH_RULE}; "
                "export the model again"
            )
        file = folder / path
        # Unlike Path.resolve, this does not fail for a loop of links.
        if not any(map(Path(os.path.realpath(file)).is_relative_to, homes)):
            raise InvalidInput(f"{refers} is outside of its folder")
        if not file.exists():
            raise InvalidInput(f"{refers} does not exist; copy that file to the model's folder")
        if not file.is_file():  # reading a named pipe would block
            raise InvalidInput(f"{refers} is not a regular file")
    return [model.parent / location for location in locations]


@lru_cache(maxsize=1024)
def _locations(model: Path, *_state: int) -> tuple[str, ...]:
    """Return the locations that a model names, which is parsed once in each state of its file."""
    with model.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:  # an empty file cannot be mapped
            return ()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                entries = list(_entries(memoryview(content), "model"))
            except (DecodeError, UnicodeDecodeError):
                raise Damaged(f"{model.name} is damaged, or not an ONNX model") from None
    return tuple(sorted({value for key, value in entries if key == "location"}))


def _entries(data: memoryview, kind: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield keys and values of the ``external_data`` entries of all tensors."""
    # Release each view when done: the mapped file cannot be closed while views exist.
    with data:
        if depth > _MAX_DEPTH:
            raise DecodeError("nested too deeply")
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
