"""Header blocks of calls."""

import tracemalloc
from typing import Any

import grpc
import pytest
from hpack import Decoder, Encoder

from synergai.errors import InvalidInput
from synergai.protocol.native.headers import (
    MAX_FIELDS,
    RESPONSE,
    SUCCEEDED,
    CallHeaders,
    HeaderDecoder,
    status_fields,
)

CALL = ((":method", "POST"), (":path", "/a/B"), ("content-type", "application/grpc"))


def fields_of(block: bytes) -> list[tuple[str, str]]:
    fields: Any = Decoder().decode(block)  # texts, which its annotations do not say
    return [tuple(each) for each in fields]


def decoded(*fields: tuple[str, str]) -> CallHeaders:
    return HeaderDecoder().decode(Encoder().encode((*CALL, *fields)))


def test_call_has_path_deadline_and_compression() -> None:
    headers = decoded(("grpc-timeout", "1500m"), ("grpc-encoding", "gzip"), ("te", "trailers"))
    assert headers == CallHeaders("/a/B", 1.5, "gzip", (), is_grpc=True)
    assert decoded().timeout_s is None


def test_metadata_keeps_its_order_and_binary_fields_are_decoded() -> None:
    headers = decoded(("b", "2"), ("a", "1"), ("x-bin", "AAE"), ("b", "3"))
    assert headers.metadata == (("b", "2"), ("a", "1"), ("x-bin", b"\0\1"), ("b", "3"))


@pytest.mark.parametrize(
    "field", [("grpc-timeout", "1"), ("grpc-timeout", "123456789S"), ("x-bin", "?")]
)
def test_malformed_field_is_the_fault_of_its_call_only(field: tuple[str, str]) -> None:
    assert decoded(field).fault
    assert not decoded(("x", "?")).fault


def test_block_has_a_limited_number_of_fields() -> None:
    resized, field, repeated = b"\x3f\xe1\x1f", b"\x40\x01x\x01v", b"\xbe"
    literals = b"\x00\x01a\x7f\x80\x01" + bytes(255) + b"\x0f\x11\x01b"
    HeaderDecoder().decode(resized + field + literals + repeated * (MAX_FIELDS - 4))
    with pytest.raises(InvalidInput, match="more than 128 header fields"):
        HeaderDecoder().decode(field + repeated * MAX_FIELDS)


@pytest.mark.parametrize(
    "block", [b"\x7f" + b"\xff" * 200, bytes(16384)[:2], b"\x00\x01a\x05v", b"\x7f"]
)
def test_block_that_no_client_sends_is_malformed(block: bytes) -> None:
    with pytest.raises(InvalidInput, match="malformed"):
        HeaderDecoder().decode(block)


def test_blocks_that_are_remembered_take_little_memory() -> None:
    decoder, encoder = HeaderDecoder(), Encoder()
    encoder.header_table_size = 0
    tracemalloc.start()
    for number in range(500):
        decoder.decode(encoder.encode((*CALL, ("x", f"{number}" + "x" * 8000)), huffman=False))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 100_000


@pytest.mark.parametrize("block", [b"\x40\x01x\x01", b"\xff", b"\x00\x01\xff\x01v", b"\xbe"])
def test_malformed_block_is_refused(block: bytes) -> None:
    with pytest.raises(InvalidInput):
        HeaderDecoder().decode(block)


@pytest.mark.parametrize(
    ("method", "kind", "is_grpc"),
    [
        ("POST", "application/grpc", True),
        ("POST", "application/grpc+proto", True),
        ("GET", "application/grpc", False),
        ("POST", "application/grpc-web", False),
        ("POST", "text/html", False),
    ],
)
def test_what_is_no_call_of_grpc_is_known(method: str, kind: str, *, is_grpc: bool) -> None:
    fields = ((":method", method), (":path", "/a/B"), ("content-type", kind))
    assert HeaderDecoder().decode(Encoder().encode(fields)).is_grpc is is_grpc


def test_block_that_is_repeated_means_something_else_once_the_table_has_changed() -> None:
    decoder, encoder = HeaderDecoder(), Encoder()
    decoder.decode(encoder.encode((*CALL, ("k", "first"))))
    repeated = encoder.encode((*CALL, ("k", "first")))
    assert decoder.decode(repeated) is decoder.decode(repeated)
    decoder.decode(encoder.encode((*CALL, ("k", "second"))))
    fields = Decoder()
    for each in ((*CALL, ("k", "first")), (*CALL, ("k", "second"))):
        fields.decode(Encoder().encode(each))
    assert decoder.decode(repeated).metadata != (("k", "first"),)


def test_block_that_is_repeated_after_the_only_entry_was_replaced_is_read_again() -> None:
    # A table of 100 bytes has room for one of these; the size of the table stays the same.
    decoder, index = HeaderDecoder(), b"\xbe"
    size = b"\x3f\x45"
    decoder.decode(size + b"\x40\x01k" + b"\x32" + b"a" * 50)
    assert decoder.decode(index).metadata == (("k", "a" * 50),)
    decoder.decode(b"\x40\x01k" + b"\x32" + b"b" * 50)
    assert decoder.decode(index).metadata == (("k", "b" * 50),)


def test_fields_of_responses_can_be_decoded() -> None:
    details = "100 % \N{SNOWMAN}" + "x" * 1000
    block = status_fields(grpc.StatusCode.NOT_FOUND, details, (("k", "v"), ("b-bin", b"\0")))
    assert fields_of(RESPONSE + block) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "5"),
        ("grpc-message", "100 %25 %E2%98%83" + "x" * 1000),
        ("k", "v"),
        ("b-bin", "AA"),
    ]
    assert fields_of(SUCCEEDED) == [("grpc-status", "0")]
