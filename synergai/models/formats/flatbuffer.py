"""Reads FlatBuffers without trusting them: every offset is checked before it is followed.

Runtimes follow the offsets of a model file wherever they lead, also out of the file. The layout
is that of "FlatBuffer Internals" in the FlatBuffers documentation: a table begins with the signed
distance back to its vtable, which holds, per field, the field's offset in the table or 0.
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
"""What precedes the fields in a vtable: its own size, and the table's."""


class Damaged(InvalidInput):
    """The bytes are no FlatBuffer of the expected kind."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table in `content` that begins at `start`; fields are called by their number.

    Raises:
        Damaged: on construction and from every method, if an offset leads out of the content.
    """

    content: Content
    start: int

    def __post_init__(self) -> None:
        size, table_size = self._vtable_sizes()
        if size < _VTABLE_BYTES or size % 2 or table_size < _OFFSET_BYTES:
            raise Damaged("a table without fields")
        _check(self.content, self._vtable, size)
        _check(self.content, self.start, table_size)

    @classmethod
    def root(cls, content: Content) -> Table:
        """The table that the whole buffer is about."""
        return cls(content, _follow(content, 0))

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """A number of the struct format `kind`, such as ``i``."""
        at = self._at(field, struct.calcsize(kind))
        return default if at is None else _number(self.content, at, kind)

    def table(self, field: int) -> Table | None:
        """The table that the field leads to, if it is there."""
        at = self._at(field, _OFFSET_BYTES)
        return None if at is None else Table(self.content, _follow(self.content, at))

    def tables(self, field: int, most: int) -> Iterator[Table]:
        """The tables of a vector; more than `most` are taken for damage."""
        first, count = self.vector(field, _OFFSET_BYTES)
        if count > most:
            raise Damaged(f"a list of {count:,} entries")
        for at in range(first, first + _OFFSET_BYTES * count, _OFFSET_BYTES):
            yield Table(self.content, _follow(self.content, at))

    def numbers(self, field: int, kind: str, most: int) -> tuple[int, ...]:
        """The numbers of a vector; more than `most` are taken for damage."""
        first, count = self.vector(field, struct.calcsize(kind))
        if count > most:
            raise Damaged(f"a list of {count:,} numbers")
        values: tuple[int, ...] = struct.unpack_from(f"<{count}{kind}", self.content, first)
        return values

    def text(self, field: int) -> str:
        """A string; empty if it is not there."""
        first, count = self.vector(field, 1)
        return self.content[first : first + count].decode("utf-8", errors="replace")

    def vector(self, field: int, entry_bytes: int) -> tuple[int, int]:
        """Where a vector's entries begin, and how many there are; none if it is not there."""
        at = self._at(field, _OFFSET_BYTES)
        if at is None:
            return 0, 0
        start = _follow(self.content, at)
        count = _number(self.content, start, "I")
        _check(self.content, start + _OFFSET_BYTES, count * entry_bytes)
        return start + _OFFSET_BYTES, count

    @property
    def _vtable(self) -> int:
        return self.start - _number(self.content, self.start, "i")

    def _vtable_sizes(self) -> tuple[int, int]:
        return _number(self.content, self._vtable, "H"), _number(
            self.content, self._vtable + 2, "H"
        )

    def _at(self, field: int, size: int) -> int | None:
        """Where the `size` bytes of a field are."""
        vtable_size, table_size = self._vtable_sizes()
        entry = _VTABLE_BYTES + 2 * field
        if entry >= vtable_size:
            return None
        offset = _number(self.content, self._vtable + entry, "H")
        if not offset:
            return None
        if offset + size > table_size:
            raise Damaged("a field outside of its table")
        return self.start + offset


def _follow(content: Content, at: int) -> int:
    return at + _number(content, at, "I")


def _number(content: Content, at: int, kind: str) -> int:
    _check(content, at, struct.calcsize(kind))
    (value,) = struct.unpack_from(f"<{kind}", content, at)
    return int(value)


def _check(content: Content, start: int, size: int) -> None:
    if start < 0 or start + size > len(content):
        raise Damaged("an offset that leads out of the file")
