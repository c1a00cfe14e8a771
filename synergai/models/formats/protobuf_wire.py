"""Protobuf messages read on the wire: for model files whose classes are with their runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.protocol.request_codec import LENGTH_DELIMITED, iter_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

_EMPTY: Final = memoryview(b"")
_VARINT: Final = 0
_SIGN: Final = 1 << 63


class Message:
    """A serialised message's fields, called by their numbers; parts of it stay views.

    Args:
        data: the message; nothing is a message too.

    Raises:
        DecodeError: on construction, if the bytes are not those of a message.
    """

    def __init__(self, data: memoryview = _EMPTY) -> None:
        self._data = data
        self._fields: dict[int, list[tuple[int, int, int]]] = {}
        for number, wire_type, _, content, end in iter_fields(data):
            self._fields.setdefault(number, []).append((wire_type, content, end))

    def has(self, number: int) -> bool:
        """Whether the field is there."""
        return number in self._fields

    def byte_strings(self, number: int) -> Iterator[memoryview]:
        """The contents of a repeated field of bytes, texts or messages."""
        for wire_type, content, end in self._fields.get(number, ()):
            if wire_type == LENGTH_DELIMITED:
                yield self._data[content:end]

    def messages(self, number: int) -> Iterator[Message]:
        """The messages in a repeated field."""
        return map(Message, self.byte_strings(number))

    def message(self, number: int) -> Message:
        """The message in a field; an empty one if it is not there."""
        return next(self.messages(number), Message())

    def strings(self, number: int) -> list[str]:
        """The texts in a repeated field.

        Raises:
            UnicodeDecodeError: one is not UTF-8.
        """
        return [bytes(each).decode() for each in self.byte_strings(number)]

    def string(self, number: int) -> str:
        """The text in a field; empty if it is not there.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
        """
        return next(iter(self.strings(number)), "")

    def number(self, number: int) -> int:
        """The integer in a field; 0 if it is not there."""
        for wire_type, content, end in self._fields.get(number, ()):
            if wire_type == _VARINT:
                value = sum(
                    (byte & 0x7F) << 7 * place for place, byte in enumerate(self._data[content:end])
                )
                return (value & (1 << 64) - 1 ^ _SIGN) - _SIGN
        return 0

    def map_entries(self, number: int) -> Iterator[tuple[str, Message]]:
        """Keys and values of a map from texts to messages."""
        for entry in self.messages(number):
            yield entry.string(1), entry.message(2)
