"""Limits on the frames of a client of HTTP/2."""

from __future__ import annotations

import pytest

from synergai.errors import InvalidInput
from synergai.protocol.grpcio.http2_limits import (
    CREDIT,
    CREDIT_PER_S,
    MAX_FIELDS,
    PREFACE,
    SMALL_CREDIT,
    SMALL_PER_S,
    Http2Limits,
)
from tests import http2
from tests.http2 import frame

PATH = "/inference.GRPCInferenceService/ModelInfer"
PING = frame(http2.PING, 0, 0, bytes(8))
FIELD = b"\x40\x01x\x01v"
"""A literal field, which is indexed."""
REPEATED = b"\xbe"
CONTINUATION = 9


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> Http2Limits:
    limits = Http2Limits(clock)
    limits.receive(PREFACE + frame(http2.SETTINGS, 0, 0))
    return limits


def test_calls_with_messages_are_unlimited(limits: Http2Limits) -> None:
    for stream in range(1, 20_000, 2):
        limits.receive(http2.headers(stream, PATH) + http2.message(stream, b"x") + PING)


def test_frames_of_data_have_any_size(limits: Http2Limits) -> None:
    large = frame(http2.DATA, 0, 1, bytes(1 << 20))
    limits.receive(http2.headers(1, PATH) + large[:100])
    limits.receive(large[100:] + PING)


def test_frames_with_little_data_are_limited_but_earned_with_time(
    limits: Http2Limits, clock: Clock
) -> None:
    small = frame(http2.DATA, 0, 1, b"x")
    limits.receive(small * SMALL_CREDIT)
    clock.now = 1.0
    limits.receive(small * SMALL_PER_S)
    with pytest.raises(InvalidInput, match="little data"):
        limits.receive(small)


def test_calls_without_messages_are_limited_as_all_frames_without_data(
    limits: Http2Limits,
) -> None:
    with pytest.raises(InvalidInput, match="frames without data"):
        limits.receive(b"".join(http2.headers(stream, PATH) for stream in range(1, 3000, 2)))


@pytest.mark.parametrize(
    "one",
    [
        PING,
        frame(http2.SETTINGS, 0, 0),
        frame(http2.WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(http2.DATA, 0, 1),
        frame(0xFA, 0, 0),
        frame(0xFA, 0, 0, bytes(16384)),
    ],
)
def test_frames_without_data_are_limited_but_earned_with_time(
    limits: Http2Limits, clock: Clock, one: bytes
) -> None:
    limits.receive(one * (CREDIT - 1))
    clock.now += 1.0
    limits.receive(one * CREDIT_PER_S)
    with pytest.raises(InvalidInput, match="frames without data"):
        limits.receive(one)


def test_responses_earn_the_frames_that_acknowledge_them(limits: Http2Limits) -> None:
    for _ in range(20_000):
        limits.respond(200)
        limits.receive(2 * frame(http2.WINDOW_UPDATE, 0, 1, bytes(4)) + PING)


@pytest.mark.parametrize("size", [1, 2, 7, 100, 5000])
def test_frames_are_counted_however_they_are_cut(clock: Clock, size: int) -> None:
    limits = Http2Limits(clock)
    data = PREFACE + frame(http2.SETTINGS, 0, 0)
    for stream in range(1, 41, 2):
        data += http2.headers(stream, PATH, block=50 * FIELD) + http2.message(stream, bytes(300))
    data += CREDIT * PING
    for at in range(0, len(data), size):
        limits.receive(data[at : at + size])
    with pytest.raises(InvalidInput, match="frames without data"):
        limits.receive(10 * PING)  # calls may have earned a few beyond the limit


def test_call_has_a_limited_number_of_fields(limits: Http2Limits) -> None:
    literal = b"\x00\x01a\x7f\x80\x01" + bytes(255) + b"\x0f\x11\x01b" + b"\x3f\xe1\x1f"
    limits.receive(http2.headers(1, PATH, block=FIELD + literal + REPEATED * (MAX_FIELDS - 10)))
    with pytest.raises(InvalidInput, match="more than 128 header fields"):
        limits.receive(http2.headers(3, PATH, block=FIELD + REPEATED * MAX_FIELDS))


@pytest.mark.parametrize(
    ("flags", "before", "after"), [(0x8, b"\x05", bytes(5)), (0x28, b"\x05" + bytes(5), bytes(5))]
)
def test_padding_and_priority_are_no_fields(
    limits: Http2Limits, flags: int, before: bytes, after: bytes
) -> None:
    block = b"\x00\x01a\x7f\x80\x01" + bytes(255)
    limits.receive(frame(http2.HEADERS, http2.END_HEADERS | flags, 1, before + block + after))


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (http2.headers(1, PATH, ends=False), "several frames"),
        (frame(CONTINUATION, http2.END_HEADERS, 1), "several frames"),
        (http2.headers(1, PATH, block=b"\x7f" + b"\xff" * 200), "malformed"),
        (http2.headers(1, PATH, block=bytes(16384)), "header block of 16,"),
    ],
)
def test_what_no_client_sends_is_refused(limits: Http2Limits, data: bytes, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        limits.receive(data)


def test_other_protocols_are_refused_at_the_first_byte(clock: Clock) -> None:
    with pytest.raises(InvalidInput, match="no HTTP/2"):
        Http2Limits(clock).receive(b"GET / HTTP/1.1\r\n")
    limits = Http2Limits(clock)
    limits.receive(PREFACE[:5])
    with pytest.raises(InvalidInput, match="no HTTP/2"):
        limits.receive(b"x")
