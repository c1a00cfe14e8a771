import pytest

from synergai.errors import InvalidInput
from synergai.wire.native import flow
from tests import http2
from tests.clocks import FakeClock
from tests.http2 import frame

PATH = "/inference.GRPCInferenceService/ModelInfer"
PING = frame(http2.PING, 0, 0, bytes(8))


@pytest.fixture
def limits(clock: FakeClock) -> flow.FrameLimits:
    limits = flow.FrameLimits(clock)
    count(limits, frame(http2.SETTINGS, 0, 0))
    return limits


def count(limits: flow.FrameLimits, frames: bytes) -> None:
    at = 0
    while at < len(frames):
        size = int.from_bytes(frames[at : at + 3])
        limits.count(frames[at + 3], size)
        at += 9 + size


def test_calls_are_unlimited_and_earn_their_reset(limits: flow.FrameLimits) -> None:
    for stream in range(1, 20_000, 2):
        call = http2.headers(stream, PATH) + http2.message(stream, b"x") + http2.reset(stream)
        count(limits, call)


@pytest.mark.parametrize("size", [1, 600])
def test_frames_with_data_earn_nothing(limits: flow.FrameLimits, size: int) -> None:
    data = frame(http2.DATA, 0, 1, bytes(size))
    with pytest.raises(InvalidInput, match="frames without data"):
        count(limits, (data + PING) * (flow.CREDIT + 1))


def test_frames_with_little_data_are_limited_but_earned_with_time(
    limits: flow.FrameLimits, clock: FakeClock
) -> None:
    small = frame(http2.DATA, 0, 1, b"x")
    count(limits, small * flow.SMALL_CREDIT)
    clock.now = 1.0
    count(limits, small * flow.SMALL_PER_S)
    with pytest.raises(InvalidInput, match="little data"):
        count(limits, small)


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
    limits: flow.FrameLimits, clock: FakeClock, one: bytes
) -> None:
    count(limits, one * (flow.CREDIT - 4))  # the settings took some
    clock.now += 1.0
    count(limits, one * flow.CREDIT_PER_S)
    with pytest.raises(InvalidInput, match="frames without data"):
        count(limits, one)


@pytest.mark.parametrize("size", [1, 50, 500])
@pytest.mark.parametrize("one", [PING, frame(http2.SETTINGS, 0, 0)])
def test_acknowledgements_of_the_server_earn_no_further_frames(
    limits: flow.FrameLimits, one: bytes, size: int
) -> None:
    def acknowledge_all() -> None:
        for _ in range(10 * flow.CREDIT):
            count(limits, one * size)
            limits.respond(size * len(one))

    with pytest.raises(InvalidInput, match="frames without data"):
        acknowledge_all()


def test_responses_earn_the_frames_that_acknowledge_them(limits: flow.FrameLimits) -> None:
    for _ in range(20_000):
        limits.respond(200)
        count(limits, 2 * frame(http2.WINDOW_UPDATE, 0, 1, bytes(4)) + PING)


def test_small_responses_that_are_sent_together_earn_what_acknowledges_each(
    limits: flow.FrameLimits,
) -> None:
    for _ in range(2000):
        limits.respond(16 * 40)
        count(limits, 16 * 2 * frame(http2.WINDOW_UPDATE, 0, 1, bytes(4)))
