"""Malformed messages, reproducible from a random generator.

Valid and hostile protobuf messages are built from their descriptors and then damaged: truncated,
bits flipped, lengths and varints exaggerated, wire types changed, groups nested, texts made
invalid. Engines are `VICTIM` or unknown, so that no message can address those of honest clients.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, cast

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from synergai.oip import inference_pb2 as oip
from synergai.v1 import fleet_pb2, hub_pb2, jobs_pb2, store_pb2
from tests import http2
from tests.http2 import PREFACE

VICTIM: Final = "victim"
"""The engine that messages may address; its requests and jobs count for nothing."""
GHOST: Final = "ghost"
"""An engine that does not exist. Only it is loaded and unloaded, as a model load takes a second."""
INTRUDER: Final = "intruder"
"""The worker that hostile agents register."""

_INTEGERS: Final = (0, 1, 2, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**64 - 1)
_DIMENSIONS: Final = (-(2**63), -2, -1, 0, 1, 1, 2, 4, 4, 1000, 2**31, 2**32, 2**62, 2**63 - 1)
_FLOATS: Final = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
_TEXTS: Final = (VICTIM, VICTIM, VICTIM, "", "x", "\0", "../..", "a" * 300, "\u202e\U0001f4a5", "1")
_DATATYPES: Final = (
    *("FP32", "FP32", "FP32", "BOOL", "INT8", "UINT64", "FP16", "BF16", "FP64", "BYTES"),
    *("", "FP33", "fp32", "FP32\0"),
)
_PARAMETERS: Final = (
    *(
        "timeout",
        "priority",
        "synergai_timings",
        "synergai_tenant",
        "sequence_id",
        "classification",
    ),
    *("binary_data", "binary_data_output", "shared_memory_region", "", "x"),
)
_MAX_DEPTH: Final = 4
_ORIGINALS: Final = 400


class Method(NamedTuple):
    """A method of a gRPC service.

    Attributes:
        path: path of its calls, such as ``/synergai.v1.Jobs/Get``.
        streaming: whether either side is a stream.
        request: descriptor of the messages that it accepts.
    """

    path: str
    streaming: bool
    request: Descriptor


def _methods(file: FileDescriptor, version: str = "") -> Iterator[Method]:
    for service in file.services_by_name.values():
        name = service.full_name.replace("v1alpha", version) if version else service.full_name
        for method in service.methods:
            streaming = method.client_streaming or method.server_streaming
            yield Method(f"/{name}/{method.name}", streaming, method.input_type)


INFERENCE_METHODS: Final = tuple(_methods(oip.DESCRIPTOR))
HUB_METHODS: Final = tuple(_methods(hub_pb2.DESCRIPTOR))
CLIENT_METHODS: Final = (
    *INFERENCE_METHODS,
    *_methods(jobs_pb2.DESCRIPTOR),
    *_methods(fleet_pb2.DESCRIPTOR),
    *_methods(store_pb2.DESCRIPTOR),
    *_methods(health_pb2.DESCRIPTOR),
    *_methods(reflection_pb2.DESCRIPTOR),
    *_methods(reflection_pb2.DESCRIPTOR, "v1"),
    *HUB_METHODS,
)
"""Methods to call on the clients' port; those of the hub are not served there."""


# --- protobuf messages --------------------------------------------------------------------


def hostile_message(rng: random.Random, descriptor: Descriptor) -> bytes:
    """Return a message of the type, damaged in most cases."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.choice((0, 1, 2, 10, 100, 1000)))
    data = bytearray(rng.choice(_originals(descriptor)))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        rng.choice(_DAMAGES)(data, rng)
    return bytes(data)


@cache
def _originals(descriptor: Descriptor) -> Sequence[bytes]:
    """Return messages of the type to damage; building one takes longer than sending it."""
    rng = random.Random(descriptor.full_name)
    return [build_message(rng, descriptor).SerializeToString() for _ in range(_ORIGINALS)]


def build_message(rng: random.Random, descriptor: Descriptor) -> Message:
    """Return a message of the type, well-formed but often with hostile values."""
    if descriptor is oip.ModelInferRequest.DESCRIPTOR:
        return hostile_request(rng)
    message = message_factory.GetMessageClass(descriptor)()
    _fill(message, rng, 0)
    return message


def hostile_request(rng: random.Random) -> oip.ModelInferRequest:
    """Return a request with hostile shapes, datatypes, contents and parameters."""
    name = VICTIM if rng.random() < 0.9 else rng.choice(_TEXTS)
    request = oip.ModelInferRequest(model_name=name, id=rng.choice(("", "", "1", "\0", "i" * 99)))
    for _ in range(rng.choice((1, 1, 1, 1, 2, 0, 9))):
        tensor = request.inputs.add(
            name=rng.choice(("x", "x", "x", "y", "", "x\0")),
            datatype=rng.choice(_DATATYPES),
            shape=[rng.choice(_DIMENSIONS) for _ in range(rng.choice((1, 1, 1, 2, 0, 3, 40)))],
        )
        if rng.random() < 0.2:
            _fill(tensor.contents, rng, _MAX_DEPTH)
        else:
            size = rng.choice((4, 4, 16, 16, 0, 1, 4000, 100_000 if rng.random() < 0.05 else 5))
            request.raw_input_contents.append(rng.randbytes(size))
    if rng.random() < 0.3:
        _fill(request.parameters[rng.choice(_PARAMETERS)], rng, _MAX_DEPTH)
    if rng.random() < 0.1:
        request.outputs.add(name=rng.choice(("y", "x", "", "z")))
    return request


def _fill(message: Message, rng: random.Random, depth: int) -> None:
    """Set random fields of a message."""
    for field in cast("Sequence[Field]", message.DESCRIPTOR.fields):
        if rng.random() < 0.3:
            continue
        if field.type == Field.TYPE_MESSAGE:
            _fill_nested(message, field, rng, depth + 1)
        elif field.is_repeated:
            values = [_value(field, rng) for _ in range(rng.choice((0, 1, 2, 20)))]
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, _value(field, rng))


def _fill_nested(message: Message, field: Field, rng: random.Random, depth: int) -> None:
    if depth > _MAX_DEPTH or field.message_type is None:
        return
    nested = getattr(message, field.name)
    if field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        for _ in range(rng.choice((0, 1, 3))):
            if value.type == Field.TYPE_MESSAGE:
                _fill(nested[rng.choice(_PARAMETERS)], rng, depth)
            else:
                nested[rng.choice(_PARAMETERS)] = _value(value, rng)
    elif field.is_repeated:
        for _ in range(rng.choice((0, 1, 2, 5))):
            _fill(nested.add(), rng, depth)
    else:
        nested.SetInParent()
        _fill(nested, rng, depth)


def _value(field: Field, rng: random.Random) -> Any:
    match field.type:
        case Field.TYPE_STRING:
            if field.containing_type is not None and "Repository" in field.containing_type.name:
                return rng.choice((GHOST, ""))
            if field.name == "worker_id":
                return f"{INTRUDER}-{rng.randrange(8)}"
            return rng.choice(_TEXTS)
        case Field.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 4, 40)))
        case Field.TYPE_BOOL:
            return rng.random() < 0.5
        case Field.TYPE_DOUBLE | Field.TYPE_FLOAT:
            return rng.choice(_FLOATS)
        case Field.TYPE_ENUM:
            return rng.choice((0, 1, 2, 3, 77))
        case Field.TYPE_INT64 | Field.TYPE_SINT64 | Field.TYPE_SFIXED64:
            return rng.choice(_DIMENSIONS)
        case Field.TYPE_UINT64 | Field.TYPE_FIXED64:
            return rng.choice(_INTEGERS)
        case Field.TYPE_UINT32 | Field.TYPE_FIXED32:
            return rng.choice(_INTEGERS) & 0xFFFFFFFF
        case _:
            return rng.choice(_INTEGERS) & 0x7FFFFFFF


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randint(1, 8))


def _huge_varint(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at : at + 1] = rng.choice((b"\xff" * 9 + b"\x01", b"\xff" * 11, b"\xff" * 4 + b"\x0f"))


def _huge_length(data: bytearray, rng: random.Random) -> None:
    """Append a length-delimited field that claims up to 2**63 bytes."""
    data.append(rng.randrange(1, 16) << 3 | 2)
    data += rng.choice((b"\xff\xff\xff\xff\x07", b"\xff" * 9 + b"\x00", b"\x80\x80\x80\x20"))
    data += rng.randbytes(rng.randrange(4))


def _wrong_type(data: bytearray, rng: random.Random) -> None:
    """Change the wire type of what may be a tag."""
    if data:
        at = rng.choice((0, rng.randrange(len(data))))
        data[at] = data[at] & 0xF8 | rng.randrange(8)


def _nest(data: bytearray, rng: random.Random) -> None:
    """Insert nested groups, closed or not."""
    depth = rng.choice((1, 50, 99, 101, 1000, 5000))
    tag = rng.randrange(1, 16) << 3
    closing = bytes((tag | 4,)) * (depth if rng.random() < 0.5 else 0)
    data += bytes((tag | 3,)) * depth + closing


def _nest_lengths(data: bytearray, rng: random.Random) -> None:
    """Wrap the message into the same length-delimited field over and over."""
    tag = rng.randrange(1, 16) << 3 | 2
    wrapped = bytes(data[:100])
    while len(wrapped) < 120:
        wrapped = bytes((tag, len(wrapped))) + wrapped
    data[:] = wrapped


def _invalid_text(data: bytearray, rng: random.Random) -> None:
    at = data.find(VICTIM.encode())
    at = at if at >= 0 else rng.randrange(len(data) + 1)
    bad = rng.choice((b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88"))
    data[at : at + len(bad)] = bad


def _repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data += data[at : at + 200] * rng.choice((1, 10, 50))


_DAMAGES: Final[Sequence[Callable[[bytearray, random.Random], None]]] = (
    *(_flip, _flip, _flip, _truncate, _insert, _huge_varint, _huge_length, _wrong_type),
    *(_nest, _nest_lengths, _invalid_text, _repeat),
)


# --- frames of sockets ----------------------------------------------------------------------

_SETTINGS: Final = http2.frame(http2.SETTINGS, 0, 0)


def hostile_connection(rng: random.Random, methods: Sequence[Method]) -> bytes:
    """Return what a hostile client sends on a connection to a gRPC port: HTTP/2 frames or none."""
    if rng.random() < 0.2:
        return rng.choice(
            (b"", PREFACE[: rng.randrange(24)], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01")
        )
    if rng.random() < 0.1:
        return rng.randbytes(rng.choice((1, 24, 200, 5000)))
    frames = [PREFACE, _SETTINGS] if rng.random() < 0.9 else [PREFACE]
    frames += [
        rng.choice((_call_frames, _random_frame))(rng, methods) for _ in range(rng.randint(1, 4))
    ]
    data = bytearray(b"".join(frames))
    if rng.random() < 0.5:
        at = rng.randrange(len(PREFACE), len(data))
        data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


def _random_frame(rng: random.Random, _methods: Sequence[Method]) -> bytes:
    """Return a frame of any type, with a wrong length now and then."""
    payload = rng.randbytes(rng.choice((0, 4, 5, 8, 17, 200)))
    stream = rng.choice((0, 1, 1, 2, 3, 2**31 - 1, 2**32 - 1))
    frame = bytearray(http2.frame(rng.randrange(14), rng.randrange(256), stream, payload))
    if rng.random() < 0.2:
        frame[0:3] = rng.choice((b"\xff\xff\xff", b"\0\0\1", b"\0\x40\1"))
    return bytes(frame)


def _call_frames(rng: random.Random, methods: Sequence[Method]) -> bytes:
    """Return a call with a hostile message, wrong length prefix or flags."""
    method = rng.choice(methods)
    fields = [
        (":method", rng.choice(("POST", "POST", "POST", "GET", ""))),
        (":scheme", "http"),
        # The last one ends the connection. If it were frequent, few other messages would arrive.
        (":path", rng.choices((method.path, "/x y", "/\udcff"), (900, 97, 3))[0]),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", rng.choice(("application/grpc", "application/grpc", "text/html", ""))),
        ("grpc-timeout", rng.choice(("1S", "100m", "-1S", "99999999999H", "x"))),
        ("grpc-encoding", rng.choice(("identity", "gzip", "snappy", ""))),
    ]
    if rng.random() < 0.1:
        fields.append(("a?b", "\x01\x02"))
    if rng.random() < 0.1:
        fields.append(("x-large", "a" * 9000))
    block = http2.encoded(fields)
    stream = rng.choice((1, 1, 1, 3, 5))
    message = hostile_message(rng, method.request)
    size = len(message) if rng.random() < 0.7 else rng.choice((0, 1, 2**31, 2**32 - 1))
    flag = rng.choice((0, 0, 0, 1, 7))
    body = bytes((flag,)) + size.to_bytes(4, "big") + message
    frames = http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block[:16_000])
    frames += http2.frame(http2.DATA, rng.choice((0, 1, 1)), stream, body[:16_000])
    if rng.random() < 0.2:
        frames += http2.reset(stream)
    return frames


def hostile_frame(rng: random.Random, message: bytes) -> bytes:
    """Return a frame of a work socket whose length may not be the message's."""
    size = len(message)
    if rng.random() < 0.3:
        size = rng.choice((0, size + 1, max(0, size - 1), 2**26, 2**26 + 1, 2**31, 2**32 - 1))
    return size.to_bytes(4, "little") + message


# --- HTTP -----------------------------------------------------------------------------------

_ROUTES: Final = (
    *(("POST", f"/v2/models/{VICTIM}/infer"),) * 12,
    ("POST", f"/v2/models/{VICTIM}/versions/1/infer"),
    ("POST", f"/v2/models/{GHOST}/infer"),
    ("POST", "/v2/models/%00%ff/infer"),
    ("POST", f"/v2/models/{VICTIM}/generate"),
    *(("GET", f"/v2/models/{VICTIM}{call}") for call in ("", "/ready", "/config", "/stats")),
    *(("GET", path) for path in ("/", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready")),
    *(("GET", path) for path in ("/metrics", "/healthz", "/openapi.json", "/v2/models/stats")),
    *(("GET", path) for path in ("/" + "a" * 5000, "//", "/%", "/v2/models//infer", "*")),
    ("POST", "/v2/repository/index"),
    ("POST", f"/v2/repository/models/{GHOST}/load"),
    ("POST", f"/v2/repository/models/{GHOST}/unload"),
    ("PUT", "/v2"),
    ("OPTIONS", "*"),
)
_JSON_VALUES: Final = (
    *("null", "true", "-1", "0", "1e999", "18446744073709551616", '""', '"x"', "[]", "{}"),
    *('"\\ud800"', "NaN", "1" * 400, "[[[[1]]]]", '"\xff"', "-0.0", "[null]", '"\\u0000"'),
)


def hostile_http(rng: random.Random) -> tuple[bytes, bool]:
    """Return what to send on an HTTP connection, and whether it is a complete request."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.choice((1, 16, 400, 70_000))), False
    method, path = rng.choice(_ROUTES)
    body = _json_body(rng) if method == "POST" else b""
    fields = [f"{method} {path} HTTP/1.1", "host: localhost"]
    length: object = len(body)
    complete = True
    if rng.random() < 0.1:
        length = rng.choice((len(body) + 9, -1, "x", 2**63, "1,2", ""))
        complete = False
    if rng.random() < 0.1:
        fields.append("transfer-encoding: chunked")
        size = rng.choice((len(body), 2**40, -1, 0))
        body = f"{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        complete = False
    elif body or not complete:
        fields.append(f"content-length: {length}")
    for name, values in _HEADERS:
        if rng.random() < 0.06:
            fields.append(f"{name}: {rng.choice(values)}")
    data = bytearray("\r\n".join((*fields, "", "")).encode("latin-1") + body)
    if rng.random() < 0.3:
        complete = False
        for _ in range(rng.randint(1, 3)):
            rng.choice((_flip, _insert, _truncate, _repeat))(data, rng)
    return bytes(data), complete


_HEADERS: Final = (
    ("inference-header-content-length", ("0", "1", "10", "-1", "x", "999999999999", "9" * 40)),
    ("content-encoding", ("gzip", "deflate", "br", "identity", "")),
    ("synergai-timeout-ms", ("0", "1", "1000", "-1", "x", "1e9", "9" * 30)),
    ("synergai-tenant", ("a", "\xff", "", "a" * 300)),
    ("origin", ("http://elsewhere", "null")),
    ("expect", ("100-continue", "x")),
    ("upgrade", ("websocket", "h2c")),
    ("connection", ("close", "upgrade", "keep-alive", "x")),
    ("cookie", ("a" * 3000, "a" * 70_000)),
)


def _json_body(rng: random.Random) -> bytes:
    """Return the JSON of an inference request with hostile values, damaged in some cases."""
    if rng.random() < 0.1:
        depth = rng.choice((10, 1000, 20_000))
        return rng.choice(("[", '{"inputs":', "[[1,")).encode() * depth
    tensor: dict[str, Any] = {
        "name": rng.choice(("x", "x", "x", "y", "")),
        "datatype": rng.choice(_DATATYPES),
        "shape": [rng.choice(_DIMENSIONS) for _ in range(rng.choice((1, 1, 1, 2, 0, 40)))],
        "data": [rng.choice((1, 1.5, True, "x", None, [1], {}, -1)) for _ in range(4)],
    }
    if rng.random() < 0.3:
        tensor["parameters"] = {rng.choice(_PARAMETERS): rng.choice((-1, 0, 8, "x", True, {}, []))}
    text = json.dumps({"id": "1", "inputs": [tensor] * rng.choice((1, 1, 1, 2, 0, 30))})
    if rng.random() < 0.4:
        parts = text.split(": ")
        at = rng.randrange(1, len(parts))
        parts[at] = rng.choice(_JSON_VALUES)
        text = ": ".join(parts)
    data = bytearray(text.encode("latin-1"))
    if rng.random() < 0.3:
        rng.choice((_flip, _insert, _truncate))(data, rng)
    if rng.random() < 0.2:
        data += rng.randbytes(16)
    return bytes(data)
