"""Manifests: files that list the inputs of a job.

A text file (``.txt``) has a path per line; empty lines and lines that begin with ``#`` are
left out. A CSV file (``.csv``) has a header with a column ``path`` or ``file`` and
optionally ``name``; without such a header, its first column has the paths. In a JSON-lines file
(``.jsonl``), each line is a string, or an object with the keys of CSV's columns. Paths are relative
to the manifest.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from synergai.data.files import suffix_of
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def read_manifest(path: str) -> Iterator[ManifestEntry]:
    """Yield the entries of a manifest, which is read line by line."""
    read = {".txt": _read_text, ".csv": _read_csv, ".jsonl": _read_json_lines}[suffix_of(path)]
    with Path(path).open("rb") as file:
        # File names need not be UTF-8; `os.fsencode` restores these bytes.
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        try:
            for number, listed, name in read(path, lines):
                if "\0" in listed:
                    raise InvalidInput(f"{path}: a path has a zero byte; is it a manifest?")
                yield ManifestEntry(resolve(listed, path), name or listed, number)
        except csv.Error as error:
            raise InvalidInput(f"{path}: {error}") from None


def resolve(listed: str, manifest: str) -> str:
    """Return the path that a manifest lists, ready to be opened."""
    return str(Path(manifest).parent / listed)


def _read_text(_path: str, lines: IO[str]) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield number, text, ""


def _read_csv(path: str, lines: IO[str]) -> Iterator[tuple[int, str, str]]:
    rows = csv.reader(lines)
    header = [cell.strip().lower() for cell in next(rows, [])]
    paths = [header.index(key) for key in PATH_KEYS if key in header]
    if not paths:
        if header:
            lines.seek(0)
            rows = csv.reader(lines)
        paths, names = [0], []
    else:
        names = [header.index("name")] if "name" in header else []
    for row in rows:
        if not row:
            continue
        if len(row) <= max(paths[0], *names, 0) or not row[paths[0]].strip():
            raise InvalidInput(f"{path}, line {rows.line_num}: it has no path")
        yield rows.line_num, row[paths[0]].strip(), row[names[0]].strip() if names else ""


def _read_json_lines(path: str, lines: IO[str]) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidInput(f"{path}, line {number}: it is not JSON") from None
        fields = value if isinstance(value, dict) else {"path": value}
        listed = next((fields[key] for key in PATH_KEYS if fields.get(key)), None)
        name = fields.get("name", "")
        if not isinstance(listed, str) or not isinstance(name, str):
            raise InvalidInput(
                f'{path}, line {number}: write a string, or an object such as {{"path": "a.jpg"}}'
            )
        yield number, listed, name
