"""A request's envelope: everything in a ``ModelInferRequest`` but its raw tensors.

Protobuf copies every field that it parses, and a tensor is most of a request's bytes. Serialised
messages can be taken apart between two fields and put together again, so the raw tensors are
cut out first and stay views of the bytes that came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Buffer: TypeAlias = bytes | memoryview

_SMALL_BYTES: Final = 4096
"""Up to here, letting protobuf copy is quicker than looking at fields in Python."""
_RAW_INPUT_CONTENTS: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
LENGTH_DELIMITED: Final = 2
"""Wire type of strings, bytes, messages and packed numbers."""
_RAW_OUTPUT_TAG: Final = b"\x32"
"""Field 6 of ``ModelInferResponse``, length-delimited."""
_INFER_RESPONSE_TAG: Final = b"\x12"
"""Field 2 of ``ModelStreamInferResponse``, length-delimited."""


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
        if len(data) <= _SMALL_BYTES:
            header = ModelInferRequest.FromString(bytes(data))
            raw: list[Buffer] = list(header.raw_input_contents)
            header.ClearField("raw_input_contents")
            return Envelope(header, raw)
        view = memoryview(data)
        rest: list[Buffer] = []
        raw = []
        for number, wire_type, start, content, end in fields(view):
            if number == _RAW_INPUT_CONTENTS and wire_type == LENGTH_DELIMITED:
                raw.append(view[content:end])
            else:
                rest.append(view[start:end])
        return Envelope(ModelInferRequest.FromString(b"".join(rest)), raw)
    except DecodeError as error:
        raise InvalidInput("the message is not a valid inference.ModelInferRequest") from error


def stream_response(response: bytes) -> bytes:
    """The serialised ``ModelStreamInferResponse`` around a serialised ``ModelInferResponse``."""
    return _INFER_RESPONSE_TAG + _varint(len(response)) + response


def raw_output_prefix(size: int) -> bytes:
    """What precedes `size` bytes of ``raw_output_contents`` in a serialised response."""
    return _RAW_OUTPUT_TAG + _varint(size)


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
