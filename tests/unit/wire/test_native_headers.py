"""Header blocks of calls."""

import logging
import random
import tracemalloc
from typing import Any
from unittest.mock import patch

import grpc
import pytest
from hpack import Decoder, Encoder
from hpack.hpack import encode_integer
from hpack.huffman_table import decode_huffman

from synergai.errors import InternalError, Overloaded
from synergai.wire.native.flow import RESPONSE, SUCCEEDED, status_fields
from synergai.wire.native.headers import MAX_FIELD_BYTES, BlockDecoder, CallHeaders, HeaderDecoder
from synergai.wire.native.http2 import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault

BEGIN = ((":method", "POST"), (":scheme", "http"), (":path", "/a/B"))
CALL = (*BEGIN, ("content-type", "application/grpc"))


def fields_of(block: bytes) -> list[tuple[str, str]]:
    fields: Any = Decoder().decode(block)  # texts, which its annotations do not say
    return [tuple(each) for each in fields]


def decoded(*fields: tuple[str, str | bytes]) -> CallHeaders:
    return HeaderDecoder().decode(Encoder().encode((*CALL, *fields)))


def test_call_has_path_deadline_and_compression() -> None:
    headers = decoded(("grpc-timeout", "1500m"), ("grpc-encoding", "gzip"), ("te", "trailers"))
    assert headers == CallHeaders("/a/B", 1.5, "gzip", has_pseudo=True)
    assert decoded().timeout_s is None


def test_values_of_fields_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    decoder, encoder = HeaderDecoder(), Encoder()
    for number in range(200):  # of which the table evicts most
        decoder.decode(encoder.encode((*CALL, ("authorization", f"secret {number}"))))
    assert "secret" not in caplog.text


def test_metadata_keeps_its_order_and_binary_fields_are_decoded() -> None:
    headers = decoded(("b", "2"), ("a", "1"), ("x-bin", "AAE"), ("b", "3"))
    assert headers.metadata == (("b", "2"), ("a", "1"), ("x-bin", b"\0\1"), ("b", "3"))


@pytest.mark.parametrize(
    "field", [("grpc-timeout", "1"), ("grpc-timeout", "123456789S"), ("x-bin", "?")]
)
def test_malformed_field_of_grpc_is_the_fault_of_its_call_only(field: tuple[str, str]) -> None:
    headers = decoded(field)
    assert isinstance(headers.fault, InternalError)
    assert not headers.malformed
    assert decoded(("x", "?")).fault is None


@pytest.mark.parametrize(
    ("value", "text"),
    [("caf\u00e9".encode(), "caf\u00e9"), (b"caf\xe9", "caf\u00e9"), (b"\x80\xff", "\x80\xff")],
)
def test_value_that_is_not_utf_8_is_read_as_latin_1(value: bytes, text: str) -> None:
    headers = decoded(("x", value))
    assert (headers.metadata, headers.fault, headers.malformed) == ((("x", text),), None, "")


@pytest.mark.parametrize(
    "fields",
    [
        (*BEGIN, ("te", "trailers"), (":authority", "a")),
        (*BEGIN, (":protocol", "websocket")),
        (*CALL, (b"\xff", "1")),
        (*CALL, ("transfer-encoding", "chunked")),
        (*CALL, ("content-length", "-1")),
        (*CALL, ("content-length", "x")),
    ],
    ids=repr,
)
def test_request_that_http_forbids_is_malformed(fields: Any) -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    assert decoder.decode(encoder.encode(fields)).malformed
    headers = decoder.decode(encoder.encode((*CALL, ("kept", "1"))))
    assert headers == CallHeaders("/a/B", metadata=(("kept", "1"),), has_pseudo=True)


def test_fields_are_limited_by_the_announced_size_however_many_they_are() -> None:
    def call(fields: int, size: int = 10) -> CallHeaders:
        return decoded(*(("x", "v" * (size - 1)) for _ in range(fields)))

    assert len(call(300).metadata) == 300
    taken = sum(32 + len(name) + len(value) for name, value in CALL)
    room = MAX_FIELD_BYTES - taken - 32
    assert call(1, room).fault is None
    assert isinstance(call(1, room + 1).fault, Overloaded)
    assert isinstance(call(450).fault, Overloaded)


@pytest.mark.parametrize("repeated", [b"\xbe", b"\x40\x01y\x01v", b"\x7e\0", b"\x0f\x2f\x01v"])
def test_block_that_is_too_large_leaves_the_table_that_its_client_has(repeated: bytes) -> None:
    decoder, encoder = HeaderDecoder(), Encoder()
    decoder.decode(encoder.encode((*CALL, ("k", "kept"))))
    field = b"\x40\x01x" + b"\x7f\xa1\x1e" + b"v" * 4000
    too_large = field + repeated * 16_000 + b"\x40\x01k\x04last"
    assert isinstance(decoder.decode(too_large).fault, Overloaded)
    assert decoder.decode(b"\x82\x86\x84\xbe").metadata == (("k", "last"),)


def test_value_that_does_not_fit_into_the_table_empties_it() -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01k\x01v")
    decoder.decode(b"\x40\x01x" + b"\x7f\xa1\x1f" + b"v" * 4128)
    with pytest.raises(ConnectionFault):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize("huffman", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_decoded_as_they_were_encoded(seed: int, *, huffman: bool) -> None:
    draw, encoder, decoder = random.Random(seed), Encoder(), BlockDecoder()
    for _ in range(200):
        if draw.random() < 0.1:
            encoder.header_table_size = draw.choice([0, 64, 500, 4096])
        fields = [
            (draw.choice([b"a", b"te", b":path", b"x" * 200]), draw.randbytes(draw.randrange(300)))
            for _ in range(draw.randrange(8))
        ]
        fields += draw.choices(fields, k=2) if fields else []
        block = encoder.encode(fields, huffman=huffman)
        for at in range(0, len(block), step := draw.randint(1, 1000)):
            decoder.feed(block[at : at + step])
        assert decoder.end() == fields


@pytest.mark.parametrize("part", [100, 16_384, 1 << 20])
@pytest.mark.parametrize("field", ["\x40\x01x", "\0\x01x", "\x10\x01x"])
@pytest.mark.parametrize("coded", [0, 0x80])
def test_value_of_any_size_is_refused_with_its_call_and_not_kept(
    field: str, coded: int, part: int
) -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01k\x04kept")
    length = bytes(encode_integer(1_000_000, 7))
    value = bytes([length[0] | coded]) + length[1:] + b"v" * 1_000_000
    block = field.encode() + value + b"\x40\x01k\x04last"
    *parts, last = [block[at : at + part] for at in range(0, len(block), part)]
    tracemalloc.start()
    for each in parts:
        decoder.feed(each)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * max(part, MAX_FIELD_BYTES)
    assert isinstance(decoder.decode(last).fault, Overloaded)
    assert decoder.decode(b"\x82\x86\x84\xbe").metadata == (("k", "last"),)


def test_name_of_100_kilobytes_is_refused_with_its_call() -> None:
    name = bytes(encode_integer(100_000, 7)) + b"n" * 100_000
    assert isinstance(HeaderDecoder().decode(b"\0" + name + b"\x01v").fault, Overloaded)


@pytest.mark.parametrize(
    "part",
    [b"\0" + bytes(encode_integer(1_000_000, 7)) + b"n" * 150_000, b"\x82" * 60_000],
    ids=["a name without end", "a bomb"],
)
def test_fields_that_are_too_long_or_too_many_end_the_connection(part: bytes) -> None:
    decoder = HeaderDecoder()
    decoder.feed(part)
    with pytest.raises(ConnectionFault, match="too long or too many") as fault:
        decoder.feed(b"x")
    assert fault.value.code == ENHANCE_YOUR_CALM


def test_field_that_arrives_byte_by_byte_is_decoded_once() -> None:
    decoder = HeaderDecoder()
    with patch("synergai.wire.native.headers.decode_huffman", wraps=decode_huffman) as decode:
        block = Encoder().encode([*CALL, ("x" * 5_000, "y" * 5_000)])
        for at in range(len(block) - 1):
            decoder.feed(block[at : at + 1])
        assert decoder.decode(block[-1:]).metadata == (("x" * 5_000, "y" * 5_000),)
    assert decode.call_count < 20


def test_blocks_that_are_remembered_take_little_memory() -> None:
    decoder, encoder = HeaderDecoder(), Encoder()
    encoder.header_table_size = 0
    tracemalloc.start()
    for number in range(500):
        decoder.decode(encoder.encode((*CALL, ("x", f"{number}" + "x" * 8000)), huffman=False))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 100_000


def test_fields_of_many_values_take_little_memory_however_short_their_blocks_are() -> None:
    decoder, encoder = HeaderDecoder(), Encoder()
    many = ("x-bin", "," * 3000)
    decoder.decode(encoder.encode((*CALL, many)))
    tracemalloc.start()
    for number in range(50):
        rare: Any = ("n", str(number), True)  # does not go into the table
        block = encoder.encode((*CALL, many, rare), huffman=False)
        assert len(block) < 32
        assert len(decoder.decode(block).metadata) == 3002
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 500_000


def test_of_two_deadlines_a_malformed_one_is_the_fault_of_its_call() -> None:
    for deadlines in (("bad", "1S"), ("1S", "bad")):
        headers = decoded(*(("grpc-timeout", each) for each in deadlines))
        assert isinstance(headers.fault, InternalError)


@pytest.mark.parametrize(
    "block",
    [
        b"\x40\x01x\x01",
        b"\xff",
        bytes(2),
        b"\x7f",
        b"\x81" * 1000 + b"\xbe",
    ],
    ids=bytes.hex,
)
def test_block_that_leaves_the_table_unknown_is_an_error_of_the_connection(block: bytes) -> None:
    with pytest.raises(ConnectionFault, match="malformed header block") as fault:
        HeaderDecoder().decode(block)
    assert fault.value.code == COMPRESSION_ERROR


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
    fields = ((":method", method), *BEGIN[1:], ("content-type", kind))
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
