"""Decoding of inference requests without copying or re-parsing their tensors.

Protobuf copies every field that it parses, and most of a request is tensor data. Serialised
messages can be split between fields, so the raw tensors are cut out first and stay views of the
received buffer. Successive requests of a client usually differ in tensor contents only; a
`RequestTemplate` recognises them and skips parsing altogether.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from google.protobuf.message import DecodeError
from msgspec import Struct

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from synergai.domain import Engine

Buffer: TypeAlias = bytes | memoryview

SMALL_MESSAGE_BYTES: Final = 4096
"""Up to this size, letting protobuf copy is faster than iterating over fields in Python."""
MAX_TEMPLATES: Final = 64
"""Templates kept per decoder; clients send few kinds of requests, but could send any number."""
MAX_FIELDS: Final = 8192
"""Largest number of top-level fields of a request or a response; no engine needs more. An 8 MiB
message has room for four million, and iterating over them would block the event loop for seconds.
"""
_INVALID_REQUEST: Final = "the message is not a valid inference.ModelInferRequest"
_RAW_INPUT_CONTENTS: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
LENGTH_DELIMITED: Final = 2
"""Wire type of strings, bytes, messages and packed numbers."""
_RAW_OUTPUT_CONTENTS: Final = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_INFER_RESPONSE: Final = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


class RequestHeader(Struct, frozen=True):
    """A request with its raw tensors split off.

    Attributes:
        message: the request without ``raw_input_contents``. Must not be modified: requests of the
            same template share it.
    """

    message: ModelInferRequest
    raw: Sequence[Buffer]
    template: RequestTemplate | None = None


@dataclass(slots=True, eq=False)
class RequestTemplate:
    """The common part of requests that differ only in the contents of their raw tensors.

    `validated_for` is the engine that matching requests have been validated against.
    """

    message: ModelInferRequest
    validated_for: Engine | None = field(default=None, init=False)
    # What precedes a tensor, between two offsets, and where the tensor ends.
    _frame: Sequence[tuple[int, int, bytes, int]]

    @classmethod
    def create(cls, data: Buffer, header: RequestHeader) -> Self | None:
        """Create a template from the request in `data`; None if others are unlikely to match it.

        Ids and parameters rarely repeat, and typed contents are part of the message itself.
        """
        message = header.message
        if not header.raw or message.id or message.parameters:
            return None
        # Such a request is invalid, and its template would be as large as the client likes: a
        # tensor takes two bytes in the message but a hundred times as many here.
        if len(header.raw) != len(message.inputs):
            return None
        prefixes = [field_prefix(_RAW_INPUT_CONTENTS, len(raw)) for raw in header.raw]
        end = len(data) - sum(map(len, prefixes)) - sum(map(len, header.raw))
        head = bytes(data[:end])
        # The bytes before the tensors must parse on their own: only then do they, and the field
        # prefixes after them, mean the same in every request that matches.
        if end > SMALL_MESSAGE_BYTES or not _is_message(head):
            return None
        frame, begin = [], 0
        for prefix, raw in zip(prefixes, header.raw, strict=True):
            start = end + len(prefix)
            end = start + len(raw)
            frame.append((begin, start, head + prefix, end))
            begin, head = end, b""
        template = cls(message, frame)
        return template if template.match(data) is not None else None

    def match(self, data: Buffer) -> list[Buffer] | None:
        """Return the raw contents in `data` if it matches; its length must be the template's."""
        contents: list[Buffer] = []
        for begin, start, expected, end in self._frame:
            if data[begin:start] != expected:
                return None
            contents.append(data[start:end])
        return contents


class RequestDecoder:
    """Decoder of serialised requests that caches templates of earlier ones."""

    def __init__(self) -> None:
        self._templates: dict[int, RequestTemplate] = {}  # by length of the request
        self._seen: set[int] = set()  # lengths received at least once

    def decode(self, data: Buffer) -> RequestHeader:
        """Decode the serialised ``ModelInferRequest`` in `data`."""
        try:
            return self.parse(data)
        except DecodeError as error:
            raise InvalidInput(_INVALID_REQUEST) from error

    def parse(self, data: Buffer) -> RequestHeader:
        """Decode like `decode`, but raise protobuf's `DecodeError`."""
        size = len(data)
        data = bytes(data) if size <= SMALL_MESSAGE_BYTES else memoryview(data)
        template = self._templates.get(size)
        if template is not None and (raw := template.match(data)) is not None:
            return RequestHeader(template.message, raw, template)
        header = parse_header(data)
        if size not in self._seen:
            # Encoded images and texts hardly ever repeat a length: a template for each would cost
            # more than parsing and evict the useful ones.
            if len(self._seen) >= MAX_TEMPLATES:
                self._seen.clear()
            self._seen.add(size)
            return header
        template = RequestTemplate.create(data, header)
        if template is None:
            return header
        if len(self._templates) >= MAX_TEMPLATES:
            self._templates.clear()
        self._templates[size] = template
        return RequestHeader(header.message, header.raw, template)


def parse_header(data: Buffer) -> RequestHeader:
    """Parse a serialised ``ModelInferRequest`` without templates; raises `DecodeError`."""
    if len(data) <= SMALL_MESSAGE_BYTES:
        message = ModelInferRequest.FromString(bytes(data))
        raw = list(message.raw_input_contents)
        message.ClearField("raw_input_contents")
        return RequestHeader(message, raw)
    rest, (contents,) = split_fields(data, _RAW_INPUT_CONTENTS, max_fields=MAX_FIELDS)
    return RequestHeader(ModelInferRequest.FromString(rest), contents)


def _is_message(data: bytes) -> bool:
    try:
        ModelInferRequest.FromString(data)
    except DecodeError:
        return False
    return True


def check_response(data: Buffer) -> None:
    """Raise `DecodeError` unless `data` is a serialised ``ModelInferResponse``."""
    if len(data) > SMALL_MESSAGE_BYTES:
        data, _ = split_fields(data, _RAW_OUTPUT_CONTENTS, max_fields=MAX_FIELDS)
    ModelInferResponse.FromString(bytes(data))


def split_response(data: Buffer) -> tuple[bytes, Sequence[Buffer]]:
    """Split the raw contents off a serialised ``ModelInferResponse``; raises `DecodeError`."""
    rest, (raw,) = split_fields(data, _RAW_OUTPUT_CONTENTS, max_fields=MAX_FIELDS)
    return rest, raw


def parse_response(data: Buffer) -> tuple[ModelInferResponse, Sequence[Buffer]]:
    """Parse the serialised ``ModelInferResponse`` in `data`; return its raw contents apart."""
    rest, raw = split_response(data)
    message = ModelInferResponse.FromString(rest)
    if len(raw) != len(message.outputs):
        raise DecodeError("the response has not as many raw contents as outputs")
    return message, raw


def wrap_stream_response(*response: Buffer) -> bytes:
    """Wrap the parts of a serialised ``ModelInferResponse`` in a ``ModelStreamInferResponse``."""
    return b"".join((field_prefix(_INFER_RESPONSE, sum(map(len, response))), *response))


def serialise_request(message: ModelInferRequest, contents: Iterable[Buffer]) -> bytes:
    """Serialise a request with raw contents, without copying them twice."""
    return b"".join(request_parts(message, contents))


def request_parts(message: ModelInferRequest, contents: Iterable[Buffer]) -> list[Buffer]:
    """Serialise a request with raw contents in parts, without copying these."""
    parts: list[Buffer] = [message.SerializeToString()]
    for content in contents:
        parts += (field_prefix(_RAW_INPUT_CONTENTS, len(content)), content)
    return parts


def raw_output_prefix(size: int) -> bytes:
    """Return the tag and length that precede `size` bytes of ``raw_output_contents``."""
    return field_prefix(_RAW_OUTPUT_CONTENTS, size)


@lru_cache(maxsize=1024)  # an engine's messages have few different sizes
def field_prefix(number: int, size: int) -> bytes:
    """Return the tag and length of the length-delimited field `number` with `size` bytes."""
    return _varint(number << 3 | LENGTH_DELIMITED) + _varint(size)


def split_fields(
    data: Buffer, *numbers: int, max_fields: int = sys.maxsize
) -> tuple[bytes, list[list[memoryview]]]:
    """Split the length-delimited fields with these numbers off a serialised message.

    Returns the message without them and, per number, their contents as views, in order. Raises
    `DecodeError` if `data` is not a message, or has too many fields.
    """
    view = memoryview(data)
    rest: list[memoryview] = []
    contents: dict[int, list[memoryview]] = {number: [] for number in numbers}
    for count, (number, wire_type, start, content, end) in enumerate(iter_fields(view), 1):
        if count > max_fields:
            raise DecodeError(f"more than {max_fields} fields")
        if number in contents and wire_type == LENGTH_DELIMITED:
            contents[number].append(view[content:end])
        else:
            rest.append(view[start:end])
    return b"".join(rest), list(contents.values())


def iter_fields(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Iterate over the top-level fields of a serialised message.

    Yields:
        Field number, wire type, and the offsets of the field, of its content and of its end.
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
    raise DecodeError("truncated or overlong varint")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
