import pytest

from synergai.errors import InvalidInput
from synergai.protocol.native.http2_limits import (
    CREDIT,
    CREDIT_PER_S,
    MAX_FIELDS,
    PREFACE,
    SMALL_CREDIT,
    SMALL_PER_S,
    Http2Limits,
)
from tests import http2
from tests.clocks import FakeClock
from tests.http2 import frame

PATH = "/inference.GRPCInferenceService/ModelInfer"
PING = frame(http2.PING, 0, 0, bytes(8))
FIELD = b"\x40\x01x\x01v"
"""A literal field, which is indexed."""
REPEATED = b"\xbe"
CONTINUATION = 9


@pytest.fixture
def limits(clock: FakeClock) -> Http2Limits:
    limits = Http2Limits(clock)
    receive(limits, PREFACE + frame(http2.SETTINGS, 0, 0))
    return limits


def receive(limits: Http2Limits, data: bytes) -> bytes:
    """Receive data with any number of calls; return what was not counted."""
    return data[limits.receive(data, 1 << 20) :]


def test_calls_are_unlimited_and_earn_their_reset(limits: Http2Limits) -> None:
    for stream in range(1, 20_000, 2):
        call = http2.headers(stream, PATH) + http2.message(stream, b"x") + http2.reset(stream)
        assert not receive(limits, call)


def test_calls_are_held_back_beyond_a_number(limits: Http2Limits) -> None:
    call = http2.headers(1, PATH) + http2.message(1, b"x")
    assert limits.receive(PING + 3 * call, 2) == len(PING + 2 * call)
    assert (limits.begun, limits.held) == (2, True)
    assert limits.receive(call, 0) == 0
    assert limits.receive(call, 1) == len(call)
    assert (limits.begun, limits.held) == (1, False)


@pytest.mark.parametrize("size", [1, 600])
def test_frames_with_data_earn_nothing(limits: Http2Limits, size: int) -> None:
    data = frame(http2.DATA, 0, 1, bytes(size))
    with pytest.raises(InvalidInput, match="frames without data"):
        receive(limits, (data + PING) * (CREDIT + 1))


def test_frames_of_data_have_any_size(limits: Http2Limits) -> None:
    large = frame(http2.DATA, 0, 1, bytes(1 << 20))
    receive(limits, http2.headers(1, PATH) + large[:100])
    receive(limits, large[100:] + PING)


def test_frames_with_little_data_are_limited_but_earned_with_time(
    limits: Http2Limits, clock: FakeClock
) -> None:
    small = frame(http2.DATA, 0, 1, b"x")
    receive(limits, small * SMALL_CREDIT)
    clock.now = 1.0
    receive(limits, small * SMALL_PER_S)
    with pytest.raises(InvalidInput, match="little data"):
        receive(limits, small)


@pytest.mark.parametrize(
    "one",
    [
        frame(http2.WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(http2.DATA, 0, 1),
        frame(0xFA, 0, 0),
        frame(0xFA, 0, 0, bytes(16384)),
    ],
)
def test_frames_without_data_are_limited_but_earned_with_time(
    limits: Http2Limits, clock: FakeClock, one: bytes
) -> None:
    receive(limits, one * (CREDIT - 4))  # the settings took some
    clock.now += 1.0
    receive(limits, one * CREDIT_PER_S)
    with pytest.raises(InvalidInput, match="frames without data"):
        receive(limits, one)


@pytest.mark.parametrize("size", [1, 50, 500])
@pytest.mark.parametrize("one", [PING, frame(http2.SETTINGS, 0, 0)])
def test_acknowledgements_of_the_server_earn_no_further_frames(
    limits: Http2Limits, one: bytes, size: int
) -> None:
    def acknowledge_all() -> None:
        for _ in range(10 * CREDIT):
            receive(limits, one * size)
            limits.respond(size * len(one))

    with pytest.raises(InvalidInput, match="frames without data"):
        acknowledge_all()


def test_responses_earn_the_frames_that_acknowledge_them(limits: Http2Limits) -> None:
    for _ in range(20_000):
        limits.respond(200)
        receive(limits, 2 * frame(http2.WINDOW_UPDATE, 0, 1, bytes(4)) + PING)


def test_small_responses_that_are_sent_together_earn_what_acknowledges_each(
    limits: Http2Limits,
) -> None:
    for _ in range(2000):
        limits.respond(16 * 40)
        receive(limits, 16 * 2 * frame(http2.WINDOW_UPDATE, 0, 1, bytes(4)))


@pytest.mark.parametrize("size", [1, 2, 7, 100, 5000])
def test_frames_are_counted_however_they_are_cut(clock: FakeClock, size: int) -> None:
    limits = Http2Limits(clock)
    data = PREFACE + frame(http2.SETTINGS, 0, 0)
    for stream in range(1, 41, 2):
        data += http2.headers(stream, PATH, block=50 * FIELD) + http2.message(stream, bytes(300))
    data += CREDIT * frame(0xFA, 0, 0)
    rest = b""
    for at in range(0, len(data), size):
        rest = receive(limits, rest + data[at : at + size])
    with pytest.raises(InvalidInput, match="frames without data"):
        receive(limits, 10 * PING)  # calls may have earned a few beyond the limit


def test_call_has_a_limited_number_of_fields(limits: Http2Limits) -> None:
    literal = b"\x00\x01a\x7f\x80\x01" + bytes(255) + b"\x0f\x11\x01b" + b"\x3f\xe1\x1f"
    receive(limits, http2.headers(1, PATH, block=FIELD + literal + REPEATED * (MAX_FIELDS - 10)))
    with pytest.raises(InvalidInput, match="more than 128 header fields"):
        receive(limits, http2.headers(3, PATH, block=FIELD + REPEATED * MAX_FIELDS))


@pytest.mark.parametrize(
    ("flags", "before", "after"), [(0x8, b"\x05", bytes(5)), (0x28, b"\x05" + bytes(5), bytes(5))]
)
def test_padding_and_priority_are_no_fields(
    limits: Http2Limits, flags: int, before: bytes, after: bytes
) -> None:
    block = b"\x00\x01a\x7f\x80\x01" + bytes(255)
    receive(limits, frame(http2.HEADERS, http2.END_HEADERS | flags, 1, before + block + after))


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (http2.headers(1, PATH, ends=False), "several frames"),
        (frame(CONTINUATION, http2.END_HEADERS, 1), "several frames"),
        (http2.headers(1, PATH, block=b"\x7f" + b"\xff" * 200), "malformed"),
        (http2.headers(1, PATH, block=bytes(16384)), "header block of 16,"),
        (http2.headers(1, PATH, block=b"\x00\x01a\x05v"), "malformed"),
        (frame(http2.HEADERS, http2.END_HEADERS | 0x8, 1, b"\x02\x88"), "malformed"),
        (frame(http2.HEADERS, http2.END_HEADERS | 0x8, 1), "malformed"),
        (frame(http2.HEADERS, http2.END_HEADERS | 0x20, 1, bytes(4)), "malformed"),
    ],
)
def test_what_no_client_sends_is_refused(limits: Http2Limits, data: bytes, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        receive(limits, data)


def test_other_protocols_are_refused_at_the_first_byte(clock: FakeClock) -> None:
    with pytest.raises(InvalidInput, match="no HTTP/2"):
        receive(Http2Limits(clock), b"GET / HTTP/1.1\r\n")
    limits = Http2Limits(clock)
    assert not receive(limits, PREFACE[:5])
    with pytest.raises(InvalidInput, match="no HTTP/2"):
        receive(limits, b"x")
