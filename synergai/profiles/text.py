"""Configuration dictionary as CSV or JSON text.

CSV has one column per field of `ProfileEntry` and `Configuration`. The table of the thesis can be
read as well: ``engine,worker,config,qps,t_pre_s,t_infer_3900_s,label``.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any, Final

from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary
from synergai.profiles.records import COLUMNS, KEY, from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON_VERSION: Final = 1

_REQUIRED: Final = ("engine", "worker_class", "qps")
_THESIS: Final = ("engine", "worker", "config", "qps", "t_pre_s", "t_infer_3900_s", "label")


def read_csv(text: str, where: str = "CSV") -> ConfigurationDictionary:
    """Read CSV in our own format or the thesis's; ``#`` lines before the header are comments."""
    lines = text.splitlines(keepends=True)
    comments = 0
    while comments < len(lines) and lines[comments].lstrip().startswith("#"):
        comments += 1
    reader = csv.reader(io.StringIO("".join(lines[comments:]), newline=""), strict=True)
    try:
        header = next(reader, [])
        thesis = set(header) == set(_THESIS)
        if not thesis:
            _check_header(header, f"{where}, line {comments + 1}")
        dictionary = ConfigurationDictionary()
        for row in reader:
            if not row:
                continue
            line = f"{where}, line {comments + reader.line_num}"
            if len(row) != len(header):
                raise InvalidInput(f"{line}: {len(row)} columns instead of {len(header)}")
            record: Mapping[str, Any] = dict(zip(header, row, strict=True))
            _put_new(dictionary, _convert_thesis(record, line) if thesis else record, line)
    except csv.Error as error:
        raise InvalidInput(f"{where}, line {comments + reader.line_num}: {error}") from error
    return dictionary


def write_csv(dictionary: ConfigurationDictionary) -> str:
    """Format all entries as CSV."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(_sorted_records(dictionary))
    return text.getvalue()


def read_json(text: str, where: str = "JSON") -> ConfigurationDictionary:
    """Read the format of `write_json`."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"{where}, line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except RecursionError:
        raise InvalidInput(f"{where}: nested too deeply to be a dictionary") from None
    except ValueError as error:  # an integer of thousands of digits
        raise InvalidInput(f"{where}: {error}") from error
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(entries, list):
        raise InvalidInput(f'{where}: expected an object with "version" and "entries"')
    if document.get("version") != JSON_VERSION:
        raise InvalidInput(
            f"{where} is of version {document.get('version')}, but this program reads "
            f"version {JSON_VERSION}"
        )
    dictionary = ConfigurationDictionary()
    for index, record in enumerate(entries):
        place = f"{where}, entry {index}"
        if not isinstance(record, dict):
            raise InvalidInput(f"{place}: expected an object")
        _check_header(list(record), place)
        _put_new(dictionary, record, place)
    return dictionary


def write_json(dictionary: ConfigurationDictionary) -> str:
    """Format all entries as JSON."""
    document = {"version": JSON_VERSION, "entries": _sorted_records(dictionary)}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _sorted_records(dictionary: ConfigurationDictionary) -> list[dict[str, Any]]:
    """Return records sorted by key, so that equal dictionaries produce equal texts."""
    records = map(to_record, dictionary)
    return sorted(records, key=lambda record: [record[name] for name in KEY])


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


def _put_new(dictionary: ConfigurationDictionary, record: Mapping[str, Any], where: str) -> None:
    try:
        for name, value in record.items():
            if isinstance(value, str):
                _check_text(name, value)
        entry = from_record(record, strict=False)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
    if entry.configuration in dictionary.row(entry.engine, entry.worker_class):
        raise InvalidInput(
            f"{where}: duplicate entry for {entry.engine} on {entry.worker_class} with "
            f"{entry.configuration}"
        )
    dictionary.put(entry)


def _check_text(name: str, value: str) -> None:
    """Check that any file can hold a text: JSON may escape half of a character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{name} is not Unicode text: {value!a}") from None


def _convert_thesis(record: Mapping[str, str], where: str) -> dict[str, str]:
    config = record["config"]
    if not config.isdecimal():
        raise InvalidInput(f"{where}, column config: expected a number, not {config!r}")
    # The thesis identifies configurations by thread count on x86 and by power mode on boards.
    configuration = "threads" if record["worker"] == "x86" else "power_mode"
    return {
        "engine": record["engine"],
        "worker_class": record["worker"],
        configuration: config,
        "qps": record["qps"],
        # Only T_pre, the sum of three parts, is known. Model loading is the largest part, and
        # readers only use the sum.
        "model_load_s": record["t_pre_s"],
        "label": record["label"],
    }
