"""Configuration dictionary in a CSV or SQLite file, chosen by the file's suffix."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, NotFound
from synergai.profiles.dictionary import (
    COLUMNS,
    KEY,
    ConfigurationDictionary,
    from_record,
    to_record,
)
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from synergai.profiles.dictionary import ProfileEntry


DATABASE: Final = ".db"
CSV: Final = ".csv"


def load_dictionary(path: Path) -> ConfigurationDictionary:
    """Read a database or a CSV file."""
    if path.suffix not in (DATABASE, CSV):
        raise InvalidInput(f"{path}: a dictionary file must end in {DATABASE} or {CSV}")
    if not path.is_file():
        raise NotFound(f"there is no dictionary file {path}; 'synergai profile' makes one")
    if path.suffix == DATABASE:
        from synergai.profiles.store import DictionaryStore

        with DictionaryStore(path) as store:
            return store.load()
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text") from error
    return read_csv(text, str(path))


def add_to_dictionary(
    path: Path,
    entries: Iterable[ProfileEntry],
    *,
    keep_undisturbed: bool = False,
    max_entries: int | None = None,
) -> list[ProfileEntry]:
    """Add or replace entries in a database, atomically.

    The file is created if it does not exist.

    Args:
        keep_undisturbed: whether measured entries stay rather than be replaced by disturbed ones.
            Predicted ones never replace others.
        max_entries: most entries that the file may grow to; None for any number.

    Returns:
        The entries that stay.
    """
    _check_database(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error
    from synergai.profiles.store import DictionaryStore

    with DictionaryStore(path) as store:
        return store.put_all(entries, keep_undisturbed=keep_undisturbed, max_entries=max_entries)


def delete_from_dictionary(
    path: Path, selects: Callable[[ProfileEntry], bool]
) -> list[ProfileEntry]:
    """Delete the entries of a database that `selects` returns True for; return them."""
    _check_database(path)
    if not path.is_file():
        raise NotFound(f"there is no dictionary file {path}")
    from synergai.profiles.store import DictionaryStore

    with DictionaryStore(path) as store:
        return store.delete(selects)


def export_dictionary(path: Path, dictionary: ConfigurationDictionary) -> None:
    """Write a dictionary to a CSV file, atomically."""
    if path.suffix != CSV:
        raise InvalidInput(f"{path}: entries are exported to a file that ends in {CSV}")
    try:
        write_atomic(path, write_csv(dictionary))
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error


def _check_database(path: Path) -> None:
    if path.suffix != DATABASE:
        raise InvalidInput(
            f"{path}: a dictionary file must end in {DATABASE}; 'synergai dictionary import' "
            f"reads {CSV} files"
        )


_REQUIRED: Final = ("engine", "worker_class", "qps")


def read_csv(text: str, where: str = "CSV") -> ConfigurationDictionary:
    """Read the format of `write_csv`; ``#`` lines before the header are comments."""
    lines = text.splitlines(keepends=True)
    comments = 0
    while comments < len(lines) and lines[comments].lstrip().startswith("#"):
        comments += 1
    reader = csv.reader(io.StringIO("".join(lines[comments:]), newline=""), strict=True)
    try:
        header = next(reader, [])
        _check_header(header, f"{where}, line {comments + 1}")
        dictionary = ConfigurationDictionary()
        for row in reader:
            if not row:
                continue
            line = f"{where}, line {comments + reader.line_num}"
            if len(row) != len(header):
                raise InvalidInput(f"{line}: {len(row)} columns instead of {len(header)}")
            _put_new(dictionary, dict(zip(header, row, strict=True)), line)
    except csv.Error as error:
        raise InvalidInput(f"{where}, line {comments + reader.line_num}: {error}") from error
    return dictionary


def write_csv(dictionary: ConfigurationDictionary) -> str:
    """Format all entries as CSV."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    # Sorted, so that equal dictionaries produce equal texts.
    records = map(to_record, dictionary)
    writer.writerows(sorted(records, key=lambda record: [record[name] for name in KEY]))
    return text.getvalue()


def _check_header(names: list[str], where: str) -> None:
    unknown = [name for name in names if name not in COLUMNS]
    missing = [name for name in _REQUIRED if name not in names]
    if unknown:
        raise InvalidInput(
            f"{where}: unknown column {unknown[0]!r}; the columns are: {', '.join(COLUMNS)}"
        )
    if missing:
        raise InvalidInput(f"{where}: the column {missing[0]!r} is missing")
    if len(set(names)) != len(names):
        raise InvalidInput(f"{where}: a column appears twice")


def _put_new(dictionary: ConfigurationDictionary, record: Mapping[str, str], where: str) -> None:
    try:
        entry = from_record(record, strict=False)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
    if entry.configuration in dictionary.row(entry.engine, entry.worker_class):
        raise InvalidInput(
            f"{where}: duplicate entry for {entry.engine} on {entry.worker_class} with "
            f"{entry.configuration}"
        )
    dictionary.put(entry)
