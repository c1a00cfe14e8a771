"""Manifests: files that list the inputs of a job.

A text file (``.txt``) has a path per line; empty lines and lines that begin with ``#`` are left
out. A CSV file (``.csv``) has a header with a column ``path`` or ``file`` and optionally ``name``;
without such a header, its first column has the paths. In a JSON-lines file (``.jsonl``), each line
is a string, or an object with the keys of CSV's columns. Paths are relative to the manifest.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.data.files import suffix_of
from synergai.data.items import Unusable
from synergai.data.text_files import read_csv, read_json_lines, read_lines
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from synergai.data.text_files import TextFormat

MANIFEST_SUFFIXES: Final = frozenset((".txt", ".csv", ".jsonl"))
PATH_KEYS: Final = ("path", "file")
"""Columns and keys that have the paths."""


class ManifestEntry(NamedTuple):
    """A line of a manifest.

    Attributes:
        path: path of the file, ready to be opened.
        name: the input's name; as the manifest has the path, unless it names the input.
    """

    path: str
    name: str
    line: int


def read_manifest(path: str, text: TextFormat) -> Iterator[ManifestEntry]:
    """Yield the entries of a manifest, which is read line by line."""
    # File names need not be text; `os.fsencode` restores these bytes.
    lines = read_lines(path, text.encoding, errors="surrogateescape")
    entries = {
        ".txt": lambda: _read_text(lines),
        ".csv": lambda: _read_csv(lines, text.header),
        ".jsonl": lambda: _read_json_lines(lines),
    }[suffix_of(path)]()
    try:
        for number, listed, name in entries:
            yield ManifestEntry(_checked(resolve(listed, path), number), name or listed, number)
    except InvalidInput as error:
        raise InvalidInput(f"{path}, {error}") from None


def resolve(listed: str, manifest: str) -> str:
    """Return the path that a manifest lists, ready to be opened."""
    return str(Path(manifest).parent / listed)


def _checked(path: str, number: int) -> str:
    if "\0" in path:
        raise InvalidInput(f"line {number}: a path has a zero byte; is it a manifest?")
    return path


def _read_text(lines: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield number, text, ""


def _read_csv(lines: Iterable[str], has_header: bool | None) -> Iterator[tuple[int, str, str]]:
    rows = read_csv(lines)
    number, first = next(rows, (0, []))
    names = [] if has_header is False else [cell.strip().lower() for cell in first]
    paths = [names.index(key) for key in PATH_KEYS if key in names]
    if first and not paths and not has_header:
        rows = chain([(number, first)], rows)
    path = paths[0] if paths else 0
    name = names.index("name") if paths and "name" in names else None
    for number, row in rows:
        if len(row) <= max(path, name or 0) or not row[path].strip():
            raise InvalidInput(f"line {number}: it has no path")
        yield number, row[path].strip(), "" if name is None else row[name].strip()


def _read_json_lines(lines: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    for number, value in read_json_lines(lines):
        if isinstance(value, Unusable):
            raise InvalidInput(value.reason)
        fields = value if isinstance(value, dict) else {"path": value}
        listed = next((fields[key] for key in PATH_KEYS if fields.get(key)), None)
        name = fields.get("name", "")
        if not isinstance(listed, str) or not isinstance(name, str):
            raise InvalidInput(
                f'line {number}: write a string, or an object such as {{"path": "a.jpg"}}'
            )
        yield number, listed, name
