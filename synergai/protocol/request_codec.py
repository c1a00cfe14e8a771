"""A message's envelope: everything in it but the tensors.

Protobuf copies every field that it parses, and tensors are most of a message's bytes. Serialised
messages can be taken apart between two fields and put together again, so the tensors are cut out
first and stay views of the bytes that came. What a client sends after that mostly differs from it
in nothing but the tensors' contents, and is then not parsed at all.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from synergai.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from synergai.domain import Engine

    Buffer: TypeAlias = bytes | memoryview

SMALL_BYTES: Final = 4096
"""Up to here, letting protobuf copy is quicker than looking at fields in Python."""
MOST_FORMS: Final = 64
"""So many kinds of requests are known again; clients have a few, and may have any number."""
MOST_FIELDS: Final = 8192
"""No engine's requests have so many. To look at the four million for which 8 MiB have room takes
seconds, in which nobody else would be served."""
_NO_REQUEST: Final = "the message is not a valid inference.ModelInferRequest"
_RAW_INPUT_CONTENTS: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
LENGTH_DELIMITED: Final = 2
"""Wire type of strings, bytes, messages and packed numbers."""
_RAW_OUTPUT_CONTENTS: Final = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_INFER_RESPONSE: Final = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


@value()
class Envelope:
    """A request taken apart.

    Attributes:
        header: the request without ``raw_input_contents``; others may share it, so that nobody
            changes it.
        raw: those contents, in order; views of the bytes that were opened, or copies.
        form: what it has in common with requests to come, if they are to be known again.
    """

    header: ModelInferRequest
    raw: Sequence[Buffer]
    form: Form | None = None


@dataclass(slots=True, eq=False)
class Form:
    """What requests have in common that differ only in what their raw tensors hold.

    Attributes:
        header: of all of them.
        fits: the engine that all of them are known to fit.
    """

    header: ModelInferRequest
    fits: Engine | None = field(default=None, init=False)
    _frame: Sequence[tuple[int, int, bytes]]
    _contents: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, data: Buffer, envelope: Envelope) -> Self | None:
        """The form of the request in `data`; None if others are hardly like it, or in no order.

        An id or a parameter is seldom sent twice, and typed contents are a part of the header.
        """
        header = envelope.header
        if not envelope.raw or header.id or header.parameters:
            return None
        # Such a request is refused. A form of it would be as large as its client likes: a tensor
        # takes two bytes in the message, and a hundred times as many here.
        if len(envelope.raw) != len(header.inputs):
            return None
        prefixes = [field_prefix(_RAW_INPUT_CONTENTS, len(raw)) for raw in envelope.raw]
        end = len(data) - sum(map(len, prefixes)) - sum(map(len, envelope.raw))
        head = bytes(data[:end])
        # What goes before the tensors has to be a message by itself: then no byte of it, or of
        # the fields behind it, can mean anything else in the next request.
        if end > SMALL_BYTES or not _is_message(head):
            return None
        frame, contents, begin = [], [], 0
        for prefix, raw in zip(prefixes, envelope.raw, strict=True):
            frame.append((begin, end + len(prefix), head + prefix))
            begin = end + len(prefix) + len(raw)
            contents.append((end + len(prefix), begin))
            end, head = begin, b""
        form = cls(header, frame, contents)
        return form if form.opened(data) is not None else None

    def opened(self, data: Buffer) -> list[Buffer] | None:
        """The raw contents in `data`, which is as long as a request of this form, if it is one."""
        for begin, end, expected in self._frame:
            if data[begin:end] != expected:
                return None
        return [data[begin:end] for begin, end in self._contents]


class Envelopes:
    """Opens requests, and knows the form of those that came before."""

    def __init__(self) -> None:
        # By length, as are those of which one has come.
        self._forms: dict[int, Form] = {}
        self._seen: set[int] = set()

    def open(self, data: Buffer) -> Envelope:
        """Take the serialised ``ModelInferRequest`` in `data` apart.

        Raises:
            InvalidInput: it is not one.
        """
        try:
            return self.parse(data)
        except DecodeError as error:
            raise InvalidInput(_NO_REQUEST) from error

    def parse(self, data: Buffer) -> Envelope:
        """Like `open`, with protobuf's own error.

        Raises:
            DecodeError: it is not one.
        """
        size = len(data)
        data = bytes(data) if size <= SMALL_BYTES else memoryview(data)
        form = self._forms.get(size)
        if form is not None and (raw := form.opened(data)) is not None:
            return Envelope(form.header, raw, form)
        envelope = parse_envelope(data)
        if size not in self._seen:
            # Photographs and texts hardly ever have the same length twice: a form of each would
            # cost more than to parse it, and drive out those that are of use.
            if len(self._seen) >= MOST_FORMS:
                self._seen.clear()
            self._seen.add(size)
            return envelope
        form = Form.of(data, envelope)
        if form is None:
            return envelope
        if len(self._forms) >= MOST_FORMS:
            self._forms.clear()
        self._forms[size] = form
        return Envelope(envelope.header, envelope.raw, form)


def parse_envelope(data: Buffer) -> Envelope:
    """Take the serialised ``ModelInferRequest`` in `data` apart, whatever came before it.

    Raises:
        DecodeError: it is not one.
    """
    if len(data) <= SMALL_BYTES:
        header = ModelInferRequest.FromString(bytes(data))
        raw = list(header.raw_input_contents)
        header.ClearField("raw_input_contents")
        return Envelope(header, raw)
    rest, (contents,) = cut(data, _RAW_INPUT_CONTENTS, most_fields=MOST_FIELDS)
    return Envelope(ModelInferRequest.FromString(rest), contents)


def _is_message(data: bytes) -> bool:
    try:
        ModelInferRequest.FromString(data)
    except DecodeError:
        return False
    return True


def check_response(data: Buffer) -> None:
    """Check that `data` is a serialised ``ModelInferResponse``.

    Raises:
        DecodeError: it is not.
    """
    rest, _ = cut(data, _RAW_OUTPUT_CONTENTS) if len(data) > SMALL_BYTES else (bytes(data), [])
    ModelInferResponse.FromString(rest)


def stream_response(*response: Buffer) -> bytes:
    """The serialised ``ModelStreamInferResponse`` around the parts of a ``ModelInferResponse``."""
    return b"".join((field_prefix(_INFER_RESPONSE, sum(map(len, response))), *response))


def raw_output_prefix(size: int) -> bytes:
    """What precedes `size` bytes of ``raw_output_contents`` in a serialised response."""
    return field_prefix(_RAW_OUTPUT_CONTENTS, size)


@lru_cache(maxsize=1024)  # an engine's messages have few different sizes
def field_prefix(number: int, size: int) -> bytes:
    """What precedes the `size` bytes of a string, of bytes, or of a message in a field."""
    return _varint(number << 3 | LENGTH_DELIMITED) + _varint(size)


def cut(
    data: Buffer, *numbers: int, most_fields: int = sys.maxsize
) -> tuple[bytes, list[list[memoryview]]]:
    """Cut fields out of a serialised message.

    Args:
        data: the message.
        numbers: which fields; strings, bytes or messages.
        most_fields: how many the message may have, the others included.

    Returns:
        The message without them, and of each number the contents, in order and not copied.

    Raises:
        DecodeError: the bytes are not those of a message, or it has more fields.
    """
    view = memoryview(data)
    rest: list[memoryview] = []
    contents: dict[int, list[memoryview]] = {number: [] for number in numbers}
    for count, (number, wire_type, start, content, end) in enumerate(fields(view), 1):
        if count > most_fields:
            raise DecodeError(f"more than {most_fields} fields")
        if number in contents and wire_type == LENGTH_DELIMITED:
            contents[number].append(view[content:end])
        else:
            rest.append(view[start:end])
    return b"".join(rest), list(contents.values())


def fields(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """The top-level fields of a serialised message.

    Yields:
        Field number, wire type, and where the field, its content, and what follows begin.

    Raises:
        DecodeError: the bytes are not those of a message.
    """
    position, end = 0, len(data)
    while position < end:
        start = position
        tag, position = _read_varint(data, position)
        content = position
        match tag & 7:
            case 0:
                _, position = _read_varint(data, position)
            case 1:
                position += 8
            case 2:
                size, content = _read_varint(data, position)
                position = content + size
            case 5:
                position += 4
            case _:
                raise DecodeError("a group, or an unknown wire type")
        if position > end or not tag >> 3:
            raise DecodeError("truncated, or a field with number 0")
        yield tag >> 3, tag & 7, start, content, position


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DecodeError("a number that does not end")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
