"""Decoding of the header blocks of one connection (HPACK, RFC 7541)."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from synergai.wire.native.http2 import COMPRESSION_ERROR, ConnectionFault

if TYPE_CHECKING:
    from typing import TypeAlias

    Field: TypeAlias = tuple[bytes, bytes]

TABLE_BYTES: Final = 4096
"""Largest table: that of a server whose settings name no other."""
FIELD_OVERHEAD: Final = 32
"""Bytes that a field counts beside its name and value."""
_SHORT_INDICES: Final = bytes(range(0x81, 0xFF))
_RUN_OF_INDICES: Final = re.compile(rb"[\x81-\xfe]+")
_STATIC: Final = HeaderTable.STATIC_TABLE
_NEWEST: Final = len(_STATIC) + 1
"""Index of the entry of the table that was added last."""


class BlockDecoder:
    """Decodes header blocks, each to its end: the next ones refer to the table that it leaves.

    Attributes:
        changes: how often the table was changed.
    """

    __slots__ = ("_bytes", "_entries", "_max_bytes", "changes")

    def __init__(self) -> None:
        self._entries: deque[Field] = deque()
        self._bytes = 0
        self._max_bytes = TABLE_BYTES
        self.changes = 0

    def decode(self, block: bytes, max_bytes: int) -> list[Field] | None:
        """Return the fields of a block; None if they take more bytes, with `FIELD_OVERHEAD`.

        Raises:
            ConnectionFault: it is malformed, and the table unknown from here on.
        """
        fields: list[Field] = []
        room = max_bytes
        at, end = 0, len(block)
        try:
            while at < end:
                first = block[at]
                if first & 0x80:
                    if room < 0 and (run := _RUN_OF_INDICES.match(block, at)) is not None:
                        at = run.end()  # a bomb: only whether they exist is looked at
                        self._check_entries(run[0])
                        continue
                    index, at = _integer(block, at, 0x7F)
                    field = self._entry(index)
                elif first & 0x40:
                    field, at = self._literal(block, at, 0x3F)
                    self._add(field)
                elif first & 0x20:
                    at = self._resize(block, at, is_first=room == max_bytes)
                    continue
                else:
                    field, at = self._literal(block, at, 0x0F)
                room -= FIELD_OVERHEAD + len(field[0]) + len(field[1])
                if room >= 0:
                    fields.append(field)
        except (IndexError, HPACKError):
            raise ConnectionFault("a malformed header block", COMPRESSION_ERROR) from None
        return fields if room >= 0 else None

    def _entry(self, index: int) -> Field:
        if not index:
            raise IndexError
        return _STATIC[index - 1] if index <= len(_STATIC) else self._entries[index - _NEWEST]

    def _check_entries(self, indexed: bytes) -> None:
        """Check that the entries exist of fields that consist of one byte."""
        if indexed.translate(None, _SHORT_INDICES[: len(_STATIC) + len(self._entries)]):
            raise IndexError

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        index, at = _integer(block, at, mask)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _text(block, at)
        value, at = _text(block, at)
        return (name, value), at

    def _add(self, field: Field) -> None:
        self.changes += 1
        self._entries.appendleft(field)
        self._bytes += FIELD_OVERHEAD + len(field[0]) + len(field[1])
        self._evict()

    def _resize(self, block: bytes, at: int, *, is_first: bool) -> int:
        self._max_bytes, at = _integer(block, at, 0x1F)
        if self._max_bytes > TABLE_BYTES or not is_first:
            raise IndexError
        self.changes += 1
        self._evict()
        return at

    def _evict(self) -> None:
        while self._bytes > self._max_bytes:
            name, value = self._entries.pop()
            self._bytes -= FIELD_OVERHEAD + len(name) + len(value)


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return an integer (5.1) whose prefix has this mask, and where it ends."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a name or value (5.2), and where it ends."""
    is_coded = block[at] & 0x80
    size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise IndexError
    text = block[at:end]
    return decode_huffman(text) if is_coded else text, end
