"""Decoding of the header blocks of one connection (HPACK, RFC 7541)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from synergai.wire.native.http2 import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault

if TYPE_CHECKING:
    from typing import TypeAlias

    Field: TypeAlias = tuple[bytes, bytes]

MAX_FIELD_BYTES: Final = 16384
"""Most bytes of the fields of a call once they are decoded, each with `FIELD_OVERHEAD` more."""
FIELD_OVERHEAD: Final = 32
"""Bytes that a field counts beside its name and value."""
_TABLE_BYTES: Final = 4096
"""Largest table: that of a server whose settings name no other."""
_TOO_LONG: Final = bytes(MAX_FIELD_BYTES + 1)
"""Stands for a longer name or value, which fits neither the limit nor the table."""
_MOST_CUT: Final = 8 * MAX_FIELD_BYTES
"""Bytes that are kept of a field whose name, or whose short value, has not arrived in full."""
_STATIC: Final = HeaderTable.STATIC_TABLE
_NEWEST: Final = len(_STATIC) + 1
"""Index of the entry of the table that was added last."""


class BlockDecoder:
    """Decodes header blocks, each to its end: the next ones refer to the table that it leaves.

    Attributes:
        changes: how often the table was changed.
        has_begun: whether a part of a block was decoded, and not yet its last one.
    """

    def __init__(self) -> None:
        self._entries: deque[Field] = deque()
        self._size = 0
        self._most = _TABLE_BYTES
        self.changes = 0
        self._begin()

    def _begin(self) -> None:
        self.has_begun = False
        self._fields: list[Field] = []
        self._room = MAX_FIELD_BYTES
        # The beginning of a field whose end is still to come.
        self._cut = b""
        # Bytes still to come of a value that is too long.
        self._skipped = 0

    def feed(self, part: bytes) -> None:
        """Decode the next part of a block.

        Raises:
            ConnectionFault: it is malformed, and the table unknown from here on.
        """
        self.has_begun = True
        block = self._cut + part
        at = begin = self._skipped
        end = len(block)
        try:
            while at < end:
                begin, first = at, block[at]
                if first & 0x80:
                    index, at = _integer(block, at, 0x7F)
                    field = self._entry(index)
                elif first & 0x40:
                    field, at = self._literal(block, at, 0x3F)
                    self._add(field)
                elif first & 0x20:
                    at = self._resize(block, at)
                    continue
                else:
                    field, at = self._literal(block, at, 0x0F)
                self._room -= FIELD_OVERHEAD + len(field[0]) + len(field[1])
                if self._room >= 0:
                    self._fields.append(field)
        except IndexError:
            at = begin
        except HPACKError:
            raise _malformed() from None
        self._cut, self._skipped = block[at:], max(0, at - end)
        if len(self._cut) > _MOST_CUT:
            raise ConnectionFault("a field with a name that is too long", ENHANCE_YOUR_CALM)

    def end(self) -> list[Field] | None:
        """Return the fields of a block that has arrived; None if they take too many bytes.

        Raises:
            ConnectionFault: it ends within a field.
        """
        fields = None if self._room < 0 else self._fields
        if self._cut or self._skipped:
            raise _malformed()
        self._begin()
        return fields

    def _entry(self, index: int) -> Field:
        if not 0 < index < _NEWEST + len(self._entries):
            raise _malformed()
        return _STATIC[index - 1] if index < _NEWEST else self._entries[index - _NEWEST]

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        """Return a field, and where it ends. It is decoded only once it has arrived."""
        index, at = _integer(block, at, mask)
        name = (0, 0, at) if index else _span(block, at)
        value = _span(block, name[-1])
        named = self._entry(index)[0] if index else _text(block, *name)
        return (named, _text(block, *value)), value[-1]

    def _add(self, field: Field) -> None:
        self.changes += 1
        self._entries.appendleft(field)
        self._size += FIELD_OVERHEAD + len(field[0]) + len(field[1])
        self._evict()

    def _resize(self, block: bytes, at: int) -> int:
        self._most, at = _integer(block, at, 0x1F)
        if self._most > _TABLE_BYTES or self._room != MAX_FIELD_BYTES:
            raise _malformed()
        self.changes += 1
        self._evict()
        return at

    def _evict(self) -> None:
        while self._size > self._most:
            name, value = self._entries.pop()
            self._size -= FIELD_OVERHEAD + len(name) + len(value)


def _malformed() -> ConnectionFault:
    return ConnectionFault("a malformed header block", COMPRESSION_ERROR)


# The functions below raise an `IndexError` if what they read has not arrived in full.


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
    raise _malformed()


def _span(block: bytes, at: int) -> tuple[int, int, int]:
    """Return whether a name or value (5.2) is coded, where its text begins, and where it ends.

    The text of one that is too long may end behind the block.
    """
    is_coded = block[at] & 0x80
    size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block) and size < len(_TOO_LONG):
        raise IndexError
    return is_coded, at, end


def _text(block: bytes, is_coded: int, at: int, end: int) -> bytes:
    # Encoders use the code where it is shorter.
    if end - at >= len(_TOO_LONG):
        return _TOO_LONG
    return decode_huffman(block[at:end]) if is_coded else block[at:end]
