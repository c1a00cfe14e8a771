"""Configuration dictionary as CSV text, with a column for each field of its entries."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary
from synergai.profiles.records import COLUMNS, KEY, from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Mapping

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
