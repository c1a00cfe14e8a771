"""Manifests: text files that list the inputs of a job.

Each line is a path, relative to the manifest. Empty lines and lines that begin with ``#`` are left
out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.data.text_files import read_lines
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

MANIFEST_SUFFIX: Final = ".txt"


class ManifestEntry(NamedTuple):
    """A line of a manifest.

    Attributes:
        path: path of the file, ready to be opened.
        name: the input's name: the path as the manifest has it.
    """

    path: str
    name: str
    line: int


def read_manifest(path: str, encoding: str) -> Iterator[ManifestEntry]:
    """Yield the entries of a manifest, which is read line by line."""
    # File names need not be text; `os.fsencode` restores these bytes.
    lines = read_lines(path, encoding, errors="surrogateescape")
    try:
        for number, line in enumerate(lines, 1):
            listed = _checked(line.strip(), number)
            if listed and not listed.startswith("#"):
                yield ManifestEntry(str(Path(path).parent / listed), listed, number)
    except InvalidInput as error:
        raise InvalidInput(f"{path}, {error}") from None


def _checked(path: str, number: int) -> str:
    if "\0" in path:
        raise InvalidInput(f"line {number}: a path has a zero byte; is it a manifest?")
    return path
