"""Inputs of jobs over their clients' own data, split without copying or parsing their tensors."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.v1.jobs_pb2 import Input
from synergai.wire.request_codec import LENGTH_DELIMITED, field_prefix, iter_fields, request_parts
from synergai.wire.validation import SAMPLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.wire.request_codec import Buffer

_NAME: Final = Input.NAME_FIELD_NUMBER
_REQUEST: Final = Input.REQUEST_FIELD_NUMBER
_MODEL_VERSION: Final = ModelInferRequest.MODEL_VERSION_FIELD_NUMBER
_NO_VERSION: Final = bytes((_MODEL_VERSION << 3 | LENGTH_DELIMITED, 0))
_SEARCHED_FIELDS: Final = 64
_DIGEST_BYTES: Final = 8


class JobInput(Struct, frozen=True):
    """A split ``Input``: its name, and a serialised ``ModelInferRequest``."""

    name: str
    request: Buffer


def split_input(data: Buffer) -> JobInput:
    """Split a serialised ``Input``; the request is a view of it. May raise `DecodeError`."""
    view = memoryview(data)
    name = ""
    request: Buffer | None = None
    try:
        for number, wire_type, _, content, end in iter_fields(view):
            if wire_type != LENGTH_DELIMITED:
                continue
            if number == _NAME:
                name = str(view[content:end], "utf-8")
            elif number == _REQUEST:
                request = view[content:end]
    except UnicodeDecodeError as error:
        raise DecodeError("a text is not UTF-8") from error
    if request is None:
        raise DecodeError("it has no request")
    return JobInput(name, request)


def input_of(message: ModelInferRequest, contents: Iterable[Buffer]) -> bytes:
    request = request_parts(message, contents)
    return b"".join((field_prefix(_REQUEST, sum(map(len, request))), *request))


def sample_input(index: int) -> bytes:
    """Return a serialised ``Input`` that stands for a sample of the worker."""
    message = ModelInferRequest()
    message.parameters[SAMPLE].int64_param = index
    return input_of(message, ())


def without_sample(data: bytes) -> bytes:
    """Return a client's ``Input`` such that it does not stand for a sample of the worker."""
    if SAMPLE.encode() not in data:
        return data
    try:
        parsed = Input.FromString(data)
        request = ModelInferRequest.FromString(parsed.request)
    except DecodeError:
        return b""  # which the worker reports as well
    if SAMPLE in request.parameters:
        del request.parameters[SAMPLE]
        parsed.request = request.SerializeToString()
    return parsed.SerializeToString()


def chain_digest(before: int, parts: Iterable[Buffer]) -> int:
    """Return the digest of inputs from the digest `before` the last one, and its parts.

    It tells inputs apart that differ by mistake, not those of somebody who looks for collisions.
    """
    digest = blake2b(before.to_bytes(_DIGEST_BYTES, "little"), digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


def without_version(request: Buffer) -> Buffer:
    """Return a request that names no version of its engine; a copy only if it does.

    An input that cannot be split is returned unchanged.
    """
    try:
        for count, (number, *_) in enumerate(iter_fields(memoryview(request))):
            if number == _MODEL_VERSION or count == _SEARCHED_FIELDS:
                # The last of several values of a field counts.
                return bytes(request) + _NO_VERSION
    except DecodeError:
        pass
    return request
