"""Profile entries as flat records, the rows of all file formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import ValidationError, convert, structs

from synergai.domain import Configuration
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ProfileEntry
from synergai.runtime.toml_file import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import apsw

CONFIGURATION: Final = Configuration.__struct_fields__
COLUMNS: Final = tuple(
    name
    for field in ProfileEntry.__struct_fields__
    for name in (CONFIGURATION if field == "configuration" else (field,))
)
"""Column names: the fields of `ProfileEntry`, with ``configuration`` expanded to its fields."""
KEY: Final = ("engine", "worker_class", *CONFIGURATION)
"""Columns of the primary key."""
KINDS: Final = {
    field.name: "REAL" if field.type is float else "INTEGER" if field.type is int else "TEXT"
    for struct in (ProfileEntry, Configuration)
    for field in structs.fields(struct)
}
"""SQLite's types of the columns."""


def to_record(entry: ProfileEntry) -> dict[str, Any]:
    """Convert an entry to values by column; ``batch_qps`` becomes a space-separated string."""
    record = structs.asdict(entry)
    record.update(structs.asdict(record.pop("configuration")))
    record["batch_qps"] = " ".join(map(repr, entry.batch_qps))
    return {name: record[name] for name in COLUMNS}


def from_record(record: Mapping[str, Any], *, strict: bool = True) -> ProfileEntry:
    """Convert values by column to an entry; missing columns take their defaults.

    Unless `strict`, numbers may be texts.
    """
    values = dict(record)
    configuration = {name: values.pop(name) for name in CONFIGURATION if name in values}
    if "batch_qps" in values:
        values["batch_qps"] = _parse_rates(values["batch_qps"])
    values["configuration"] = configuration
    try:
        return convert(values, ProfileEntry, strict=strict)
    except ValidationError as error:
        if isinstance(error.__cause__, InvalidInput):  # of the entry, which names what is wrong
            raise error.__cause__ from None
        raise InvalidInput(sentence(error, ProfileEntry)) from None


def read_rows(rows: apsw.Cursor) -> Iterator[dict[str, Any]]:
    """Yield rows of a database as values by column, of the columns that it has."""
    names: list[str] | None = None
    for row in rows:
        names = names or [name for name, _ in rows.get_description()]
        yield dict(zip(names, row, strict=True))


def _parse_rates(text: object) -> tuple[float, ...]:
    try:
        return tuple(map(float, str(text).split()))
    except ValueError as error:
        raise InvalidInput(
            f"batch_qps must be numbers separated by spaces, not {text!r}"
        ) from error
