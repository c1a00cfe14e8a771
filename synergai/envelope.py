"""A message's envelope: everything in it but the tensors.

Protobuf copies every field that it parses, and tensors are most of a message's bytes. Serialised
messages can be taken apart between two fields and put together again, so the tensors are cut out
first and stay views of the bytes that came.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Buffer: TypeAlias = bytes | memoryview

SMALL_BYTES: Final = 4096
"""Up to here, letting protobuf copy is quicker than looking at fields in Python."""
_RAW_INPUT_CONTENTS: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
LENGTH_DELIMITED: Final = 2
"""Wire type of strings, bytes, messages and packed numbers."""
_RAW_OUTPUT_CONTENTS: Final = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_INFER_RESPONSE: Final = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


@dataclass(frozen=True, slots=True)
class Envelope:
    """A request taken apart.

    Attributes:
        header: the request without ``raw_input_contents``.
        raw: those contents, in order; views of the bytes that were opened, or copies.
    """

    header: ModelInferRequest
    raw: Sequence[Buffer]


def open_envelope(data: Buffer) -> Envelope:
    """Take the serialised ``ModelInferRequest`` in `data` apart.

    Raises:
        InvalidInput: it is not one.
    """
    try:
        return parse_envelope(data)
    except DecodeError as error:
        raise InvalidInput("the message is not a valid inference.ModelInferRequest") from error


def parse_envelope(data: Buffer) -> Envelope:
    """Like `open_envelope`, with protobuf's own error.

    Raises:
        DecodeError: it is not one.
    """
    if len(data) <= SMALL_BYTES:
        header = ModelInferRequest.FromString(bytes(data))
        raw = list(header.raw_input_contents)
        header.ClearField("raw_input_contents")
        return Envelope(header, raw)
    rest, (contents,) = cut(data, _RAW_INPUT_CONTENTS)
    return Envelope(ModelInferRequest.FromString(rest), contents)


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


def cut(data: Buffer, *numbers: int) -> tuple[bytes, list[list[memoryview]]]:
    """Cut fields out of a serialised message.

    Args:
        data: the message.
        numbers: which fields; strings, bytes or messages.

    Returns:
        The message without them, and of each number the contents, in order and not copied.

    Raises:
        DecodeError: the bytes are not those of a message.
    """
    view = memoryview(data)
    rest: list[memoryview] = []
    contents: dict[int, list[memoryview]] = {number: [] for number in numbers}
    for number, wire_type, start, content, end in fields(view):
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
