"""What a front adds to the frames between clients and a native server."""

from __future__ import annotations

import gzip
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from synergai.errors import InvalidInput
from synergai.protocol.native.calls import (
    NativeCalls,
    add_trailer,
    client_name,
    decompressing,
    on_ended,
)
from tests import http2
from tests.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, frame

NAME = "secret/ipv4:192.0.2.1:1"
MAX_BYTES = 1000
CALL = http2.headers(1, "/a/B")
LAST = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88")


class Connection(NativeCalls):
    """A connection on which the client has sent its preface, and maybe a call."""

    def __init__(self, *sent: bytes) -> None:
        super().__init__(NAME, MAX_BYTES)
        self.receive(PREFACE)
        for each in sent:
            self.receive(each)

    def context(self, stream: int = 1) -> Any:
        metadata = (("synergai-peer", "forged;3"), ("synergai-peer", f"{NAME};{stream}"))
        return SimpleNamespace(invocation_metadata=lambda: metadata)


def test_every_call_gets_the_name_of_its_client() -> None:
    connection = Connection()
    passed = connection.receive(CALL + http2.message(1, b"x") + http2.headers(3, "/a/B"))
    for stream in (1, 3):
        field = f"{NAME};{stream}".encode()
        assert passed.count(b"\0\x0dsynergai-peer" + bytes([len(field)]) + field) == 1
    length = int.from_bytes(passed[:3])
    assert passed[9 + length :].startswith(http2.message(1, b"x"))


def test_field_precedes_padding() -> None:
    padded = frame(HEADERS, END_HEADERS | 0x8, 1, b"\x02\x88" + bytes(2))
    assert Connection().receive(padded).endswith(f"{NAME};1".encode() + bytes(2))


def test_name_is_that_which_the_front_has_added() -> None:
    assert client_name(Connection().context()) == NAME


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_messages_are_limited_however_their_bytes_arrive(step: int) -> None:
    allowed = http2.message(1, bytes(200), last=False)
    large = (2 * MAX_BYTES + 1).to_bytes(4)
    connection = Connection(CALL)
    for data in (allowed, allowed, frame(DATA, 0, 1, b"\0" + large[:3])):
        connection.receive(data[:9])  # headers of frames are complete
        for at in range(9, len(data), step):
            connection.receive(data[at : at + step])
    with pytest.raises(InvalidInput, match="a message of 2,001 bytes"):
        connection.receive(frame(DATA, 0, 1, large[3:]))


def test_compressed_message_is_marked_as_plain() -> None:
    connection = Connection(CALL)
    data = frame(DATA, END_STREAM, 1, b"\x01" + (2).to_bytes(4) + b"ab")
    plain = frame(DATA, END_STREAM, 1, b"\0" + (2).to_bytes(4) + b"ab")
    assert connection.receive(data) == plain


def read(data: bytes) -> bytes:
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: b"", bytes
    )
    deserialise: Any = decompressing(method, MAX_BYTES).request_deserializer
    result: bytes = deserialise(data)
    return result


def test_handlers_decompress_within_the_limit() -> None:
    assert read(b"plain") == b"plain"
    assert read(gzip.compress(bytes(MAX_BYTES - 1))) == bytes(MAX_BYTES - 1)
    bomb = gzip.compress(bytes(1 << 20))
    assert read(bomb) == bomb
    assert read(b"\x1f\x8bfaulty") == b"\x1f\x8bfaulty"


def test_end_of_a_response_is_noticed_once_it_is_sent() -> None:
    connection = Connection(CALL)
    ended: list[int] = []
    on_ended(connection.context(), lambda: ended.append(1))
    first = frame(HEADERS, END_HEADERS, 1, b"\x88") + frame(DATA, 0, 1, bytes(100))
    connection.respond(first[:50])
    connection.respond(first[50:] + LAST[:4])
    assert not ended
    connection.respond(LAST[4:])
    assert ended == [1]
    on_ended(connection.context(), lambda: ended.append(2))
    assert ended == [1, 2]


def test_connection_is_idle_without_calls() -> None:
    assert Connection().idle_since is not None
    connection = Connection(CALL)
    assert connection.idle_since is None
    connection.respond(LAST)
    assert isinstance(connection.idle_since, float)


def test_connection_is_not_idle_within_a_frame() -> None:
    connection = Connection(CALL)
    last = frame(DATA, END_STREAM, 1, bytes(100))
    connection.respond(last[:50])
    assert connection.idle_since is None
    connection.respond(last[50:])
    assert isinstance(connection.idle_since, float)


@pytest.mark.parametrize("by", ["a reset", "leaving"])
def test_call_ends_when_its_client_goes(by: str) -> None:
    connection = Connection(CALL)
    ended: list[int] = []
    on_ended(connection.context(), lambda: ended.append(1))
    if by == "a reset":
        connection.receive(http2.reset(1))
    else:
        connection.close()
    assert ended == [1]


def test_trailers_get_metadata_that_the_server_would_refuse() -> None:
    connection = Connection(CALL)
    add_trailer(connection.context(), "grpc-retry-pushback-ms", "5")
    field = b"\0\x16grpc-retry-pushback-ms\x015"
    held = connection.respond(LAST[:9])
    assert held == b""
    assert connection.respond(LAST[9:]) == frame(
        HEADERS, END_HEADERS | END_STREAM, 1, b"\x88" + field
    )


def test_name_that_does_not_fit_into_the_frame_follows_it() -> None:
    value = "v" * 120
    long = http2.headers(1, "/a/B", block=(b"\0\x01k\x78" + value.encode()) * 131)
    assert 16384 - 60 < len(long) - 9 <= 16384
    passed = Connection().receive(long)
    assert passed[: len(long)] == long[:4] + b"\0" + long[5:]  # does not end the block
    field = b"\0\x0dsynergai-peer" + bytes([len(NAME) + 2]) + f"{NAME};1".encode()
    assert passed[len(long) :] == frame(0x9, END_HEADERS, 1, field)


def test_trailers_without_room_stay_as_they_are() -> None:
    connection = Connection(CALL)
    add_trailer(connection.context(), "grpc-retry-pushback-ms", "5")
    full = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88" * 16384)
    assert connection.respond(full) == full


def test_client_has_left_its_calls_once_it_has_acknowledged_the_ping() -> None:
    connection = Connection(CALL)
    connection.respond(frame(0x4, 0, 0) + frame(http2.PING, 0, 0, bytes(8)))
    connection.end_soon()
    acknowledged = frame(http2.PING, 0x1, 0, bytes(8))
    connection.receive(acknowledged)
    connection.respond(LAST)
    assert not connection.ended
    connection.receive(acknowledged)
    assert connection.ended
