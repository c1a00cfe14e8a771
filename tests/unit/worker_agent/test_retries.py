"""When engines whose load failed are loaded again."""

import pytest

from synergai.domain import EngineName
from tests.clocks import FakeClock
from worker_agent.inventory import FIRST_S, Retries

ENGINE = EngineName("resnet")
LONGEST_S = 60.0


def delay_s(retries: Retries, clock: FakeClock) -> float:
    """Let the engine fail, and wait for its retry; return the seconds."""
    retries.add(ENGINE, LONGEST_S)
    failed = clock.now
    while ENGINE not in retries.due():
        clock.now += 1.0
    return clock.now - failed


@pytest.fixture
def retries(clock: FakeClock) -> Retries:
    return Retries(clock)


def test_delays_double_up_to_the_longest(retries: Retries, clock: FakeClock) -> None:
    assert [delay_s(retries, clock) for _ in range(5)] == [10, 20, 40, 60, 60]


def test_engine_that_fails_long_after_its_last_retry_starts_anew(
    retries: Retries, clock: FakeClock
) -> None:
    for _ in range(3):
        delay_s(retries, clock)
    clock.now += LONGEST_S
    assert delay_s(retries, clock) == FIRST_S


def test_further_failures_before_a_retry_do_not_move_it(retries: Retries, clock: FakeClock) -> None:
    retries.add(ENGINE, LONGEST_S)
    clock.now += FIRST_S / 2
    assert delay_s(retries, clock) == FIRST_S / 2
    assert delay_s(retries, clock) == 2 * FIRST_S


def test_forgotten_engine_starts_anew(retries: Retries, clock: FakeClock) -> None:
    delay_s(retries, clock)
    retries.forget([ENGINE])
    assert not retries.due()
    assert delay_s(retries, clock) == FIRST_S
