"""When engines whose load failed are loaded again."""

import pytest

from synergai.domain import EngineName
from worker_agent.inventory.retries import FIRST_S, Retries

ENGINE = EngineName("resnet")
LONGEST_S = 60.0


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def delay_s(retries: Retries, clock: Clock) -> float:
    """Let the engine fail, and wait for its retry; return the seconds."""
    retries.add(ENGINE, LONGEST_S)
    failed = clock.now
    while ENGINE not in retries.due():
        clock.now += 1.0
    return clock.now - failed


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def retries(clock: Clock) -> Retries:
    return Retries(clock)


def test_delays_double_up_to_the_longest(retries: Retries, clock: Clock) -> None:
    assert [delay_s(retries, clock) for _ in range(5)] == [10, 20, 40, 60, 60]


def test_engine_that_fails_long_after_its_last_retry_starts_anew(
    retries: Retries, clock: Clock
) -> None:
    for _ in range(3):
        delay_s(retries, clock)
    clock.now += LONGEST_S
    assert delay_s(retries, clock) == FIRST_S


def test_further_failures_before_a_retry_do_not_move_it(retries: Retries, clock: Clock) -> None:
    retries.add(ENGINE, LONGEST_S)
    clock.now += FIRST_S / 2
    assert delay_s(retries, clock) == FIRST_S / 2
    assert delay_s(retries, clock) == 2 * FIRST_S


def test_forgotten_engine_starts_anew(retries: Retries, clock: Clock) -> None:
    delay_s(retries, clock)
    retries.forget([ENGINE])
    assert not retries.due()
    assert delay_s(retries, clock) == FIRST_S
