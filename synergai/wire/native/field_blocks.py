"""Decoding of the header blocks of one connection (HPACK, RFC 7541)."""

from __future__ import annotations

import logging
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
_TOO_LONG: Final = bytes(MAX_FIELD_BYTES + 1)
"""Stands for a longer name or value, which fits neither the limit nor the table."""
_MOST_CUT: Final = 8 * MAX_FIELD_BYTES
"""Bytes that are kept of a field that has not arrived in full."""
_MOST_SURPLUS: Final = 50_000
"""Fields beyond the limit: more than that is a bomb."""
_INDICES: Final = bytes(range(0x81, 0xFF))

logging.getLogger("hpack").setLevel(logging.INFO)  # below, it logs values, tokens among them


class BlockDecoder:
    """Decodes header blocks, each to its end: the next ones refer to the table that it leaves.

    Attributes:
        changes: how often the table was changed.
        has_begun: whether a part of a block was decoded, and not yet its last one.
        surplus: fields of the last block beyond the limit.
    """

    def __init__(self) -> None:
        self._table = HeaderTable()
        self.changes = self.surplus = self._enough = 0
        self._begin()

    def _begin(self) -> None:
        self.has_begun = False
        self._fields: list[Field] = []
        self._room = MAX_FIELD_BYTES
        # The beginning of a field, which is decoded again once there is twice as much of it.
        self._cut = b""
        # Bytes still to come of a value that is too long.
        self._skipped = 0

    def feed(self, part: bytes) -> None:
        """Decode the next part of a block.

        Raises:
            ConnectionFault: it is malformed, and the table unknown from here on.
        """
        if not self.has_begun:
            self.has_begun, self.surplus = True, 0
        elif len(self._cut) > _MOST_CUT or self.surplus > _MOST_SURPLUS:
            raise ConnectionFault("header fields that are too long or too many", ENHANCE_YOUR_CALM)
        block, fields, room = self._cut + part, self._fields, self._room
        table = self._table
        at = begin = self._skipped
        end = len(block)
        if end < self._enough:
            self._cut = block
            return
        self._enough = 0
        try:
            while at < end:
                begin, first = at, block[at]
                if first & 0x80:
                    if room < 0:  # maybe a bomb: all that counts is that its entries exist
                        known = _INDICES[: len(table.STATIC_TABLE) + len(table.dynamic_entries)]
                        at = end - len(block[at:].lstrip(known))
                        self.surplus += at - begin
                        if at > begin:
                            continue
                    if first == 0xFF:
                        index, at = _integer(block, at, 0x7F)
                    else:  # most fields
                        index, at = first & 0x7F, at + 1
                    field = table.get_by_index(index)
                elif first & 0x40:
                    field, at = self._literal(block, at, 0x3F)
                    self.changes += 1
                    table.add(*field)
                elif first & 0x20:
                    if room != MAX_FIELD_BYTES:
                        raise _malformed()
                    at = self._resize(block, at)
                    continue
                else:
                    field, at = self._literal(block, at, 0x0F)
                room -= FIELD_OVERHEAD + len(field[0]) + len(field[1])
                if room >= 0:
                    fields.append(field)
                else:
                    self.surplus += 1
        except IndexError:  # the field is cut
            at, self._enough = begin, 2 * (end - begin)
        except HPACKError:
            raise _malformed() from None
        self._room, self._cut, self._skipped = room, block[at:], max(0, at - end)

    def end(self) -> list[Field] | None:
        """Return the fields of a block that has arrived; None if they take too many bytes.

        Raises:
            ConnectionFault: it ends within a field.
        """
        if self._cut:
            self._enough = 0
            self.feed(b"")
        fields = None if self._room < 0 else self._fields
        if self._cut or self._skipped:
            raise _malformed()
        self._begin()
        return fields

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        index, at = _integer(block, at, mask)
        if index:
            name = self._table.get_by_index(index)[0]
        else:
            name, at = _text(block, at)
        value, at = _text(block, at)
        return (name, value), at

    def _resize(self, block: bytes, at: int) -> int:
        most, at = _integer(block, at, 0x1F)
        if most > HeaderTable.DEFAULT_SIZE:  # as the server's settings name no other
            raise _malformed()
        self.changes += 1
        self._table.maxsize = most
        return at


def _malformed() -> ConnectionFault:
    return ConnectionFault("a malformed header block", COMPRESSION_ERROR)


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


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a name or value (5.2), and where it ends, if it is too long maybe behind the block."""
    is_coded = block[at] & 0x80
    size, at = _integer(block, at, 0x7F)
    end = at + size
    if size >= len(_TOO_LONG):  # also decoded: encoders use the code where it is shorter
        return _TOO_LONG, end
    if end > len(block):
        raise IndexError
    text = block[at:end]
    return decode_huffman(text) if is_coded else text, end
