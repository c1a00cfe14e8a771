"""Protobuf messages in wire format, for model files whose generated classes come with a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.wire.request_codec import LENGTH_DELIMITED, iter_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

_EMPTY: Final = memoryview(b"")
_VARINT: Final = 0
_SIGN: Final = 1 << 63


class WireMessage:
    """The fields of a serialised message, addressed by number; values are views of `data`."""

    def __init__(self, data: memoryview = _EMPTY) -> None:
        self._data = data
        self._fields: dict[int, list[tuple[int, int, int]]] = {}
        for number, wire_type, _, content, end in iter_fields(data):
            self._fields.setdefault(number, []).append((wire_type, content, end))

    def byte_strings(self, number: int) -> Iterator[memoryview]:
        """Return the values of a repeated field of bytes, strings or messages."""
        for wire_type, content, end in self._fields.get(number, ()):
            if wire_type == LENGTH_DELIMITED:
                yield self._data[content:end]

    def messages(self, number: int) -> Iterator[WireMessage]:
        """Return the messages of a repeated field."""
        return map(WireMessage, self.byte_strings(number))

    def message(self, number: int) -> WireMessage:
        """Return the message in a field; an empty one if absent."""
        return next(self.messages(number), WireMessage())

    def strings(self, number: int) -> list[str]:
        """Return the strings of a repeated field."""
        return [bytes(each).decode() for each in self.byte_strings(number)]

    def string(self, number: int) -> str:
        """Return the string in a field; empty if absent."""
        return next(iter(self.strings(number)), "")

    def number(self, number: int) -> int:
        """Return the integer in a field; 0 if absent."""
        for wire_type, content, end in self._fields.get(number, ()):
            if wire_type == _VARINT:
                value = sum(
                    (byte & 0x7F) << 7 * place for place, byte in enumerate(self._data[content:end])
                )
                return (value & (1 << 64) - 1 ^ _SIGN) - _SIGN
        return 0

    def map_entries(self, number: int) -> Iterator[tuple[str, WireMessage]]:
        """Return keys and values of a map from strings to messages."""
        for entry in self.messages(number):
            yield entry.string(1), entry.message(2)
