"""A profile entry as one flat record: the shape of a table's row, whatever the table is in."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from synergai.domain import Configuration
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIGURATION: Final = tuple(field.name for field in fields(Configuration))
COLUMNS: Final = tuple(
    name
    for field in fields(ProfileEntry)
    for name in (CONFIGURATION if field.name == "configuration" else (field.name,))
)
"""All fields in order, with the configuration's own in its place."""
KEY: Final = ("engine", "worker_class", *CONFIGURATION)
"""What no two entries share."""


def to_record(entry: ProfileEntry) -> dict[str, Any]:
    """The entry's fields by column; the rates of batches are one text, with blanks between."""
    record = asdict(entry)
    record.update(record.pop("configuration"))
    record["batch_qps"] = " ".join(map(repr, entry.batch_qps))
    return {name: record[name] for name in COLUMNS}


def from_record(record: Mapping[str, Any]) -> ProfileEntry:
    """The entry with these fields, of the right types; what is missing takes its default.

    Raises:
        InvalidInput: a value is out of its range.
    """
    values = dict(record)
    configuration = {name: values.pop(name) for name in CONFIGURATION if name in values}
    if "batch_qps" in values:
        values["batch_qps"] = _rates(values["batch_qps"])
    return ProfileEntry(configuration=Configuration(**configuration), **values)


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split()))
    except ValueError as error:
        raise InvalidInput(
            f"batch_qps must be numbers with blanks between, not {text!r}"
        ) from error
