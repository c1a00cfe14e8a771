"""External weights of an ONNX model: files next to it, which it names.

The model is parsed on the wire level, without the ``onnx`` package, which workers need not have.
"""

from __future__ import annotations

import mmap
import os
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput
from synergai.models.formats.engine_paths import RULE, is_engine_path
from synergai.wire.request_codec import LENGTH_DELIMITED, iter_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

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
                f"{refers} cannot be the name of a file of an engine: it must be {RULE}; export "
                "the model again"
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
