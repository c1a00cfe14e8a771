"""FlatBuffers reader that checks every offset before following it.

Runtimes follow the offsets of a model file wherever they lead, including outside the file. For the
layout see "FlatBuffer Internals" in the FlatBuffers documentation: a table begins with the signed
distance back to its vtable, which holds each field's offset in the table, or 0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap

    Content: TypeAlias = bytes | mmap

_OFFSET_BYTES: Final = 4
_VTABLE_BYTES: Final = 4
"""Header of a vtable: its own size and the table's."""


class CorruptFlatBuffer(InvalidInput):
    """The data is not a FlatBuffer of the expected schema."""


@dataclass(frozen=True, slots=True)
class FlatBufferTable:
    """A table at `start` in `content`; fields are addressed by number."""

    content: Content
    start: int

    def __post_init__(self) -> None:
        size, table_size = self._vtable_sizes()
        if size < _VTABLE_BYTES or size % 2 or table_size < _OFFSET_BYTES:
            raise CorruptFlatBuffer("a table without fields")
        _check_bounds(self.content, self._vtable, size)
        _check_bounds(self.content, self.start, table_size)

    @classmethod
    def root(cls, content: Content) -> FlatBufferTable:
        """Return the root table of a buffer."""
        return cls(content, _dereference(content, 0))

    def number(self, field: int, struct_format: str, default: int = 0) -> int:
        """Return a number of the given struct format, such as ``i``."""
        position = self._field_position(field, struct.calcsize(struct_format))
        return default if position is None else _number(self.content, position, struct_format)

    def table(self, field: int) -> FlatBufferTable | None:
        """Return the table a field refers to; None if absent."""
        position = self._field_position(field, _OFFSET_BYTES)
        return (
            None
            if position is None
            else FlatBufferTable(self.content, _dereference(self.content, position))
        )

    def tables(self, field: int, limit: int) -> Iterator[FlatBufferTable]:
        """Return the tables of a vector; more than `limit` are corruption."""
        start, count = self.vector(field, _OFFSET_BYTES)
        if count > limit:
            raise CorruptFlatBuffer(f"a list of {count:,} entries")
        for position in range(start, start + _OFFSET_BYTES * count, _OFFSET_BYTES):
            yield FlatBufferTable(self.content, _dereference(self.content, position))

    def numbers(self, field: int, struct_format: str, limit: int) -> tuple[int, ...]:
        """Return the numbers of a vector; more than `limit` are corruption."""
        start, count = self.vector(field, struct.calcsize(struct_format))
        if count > limit:
            raise CorruptFlatBuffer(f"a list of {count:,} numbers")
        values: tuple[int, ...] = struct.unpack_from(
            f"<{count}{struct_format}", self.content, start
        )
        return values

    def string(self, field: int) -> str:
        """Return a string; empty if absent."""
        start, count = self.vector(field, 1)
        return self.content[start : start + count].decode("utf-8", errors="replace")

    def vector(self, field: int, entry_bytes: int) -> tuple[int, int]:
        """Return the position and number of a vector's entries; zeros if absent."""
        position = self._field_position(field, _OFFSET_BYTES)
        if position is None:
            return 0, 0
        start = _dereference(self.content, position)
        count = _number(self.content, start, "I")
        _check_bounds(self.content, start + _OFFSET_BYTES, count * entry_bytes)
        return start + _OFFSET_BYTES, count

    @property
    def _vtable(self) -> int:
        return self.start - _number(self.content, self.start, "i")

    def _vtable_sizes(self) -> tuple[int, int]:
        return _number(self.content, self._vtable, "H"), _number(
            self.content, self._vtable + 2, "H"
        )

    def _field_position(self, field: int, size: int) -> int | None:
        """Return the position of a field of `size` bytes; None if absent."""
        vtable_size, table_size = self._vtable_sizes()
        entry = _VTABLE_BYTES + 2 * field
        if entry >= vtable_size:
            return None
        offset = _number(self.content, self._vtable + entry, "H")
        if not offset:
            return None
        if offset + size > table_size:
            raise CorruptFlatBuffer("a field outside of its table")
        return self.start + offset


def _dereference(content: Content, position: int) -> int:
    return position + _number(content, position, "I")


def _number(content: Content, position: int, struct_format: str) -> int:
    _check_bounds(content, position, struct.calcsize(struct_format))
    (value,) = struct.unpack_from(f"<{struct_format}", content, position)
    return int(value)


def _check_bounds(content: Content, start: int, size: int) -> None:
    if start < 0 or start + size > len(content):
        raise CorruptFlatBuffer("an offset that leads out of the file")
