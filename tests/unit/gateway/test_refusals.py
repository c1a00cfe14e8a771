"""Refused agents are logged once, and then counted."""

import pytest

from gateway.hub.connections import MAX_REFUSAL_KINDS, REFUSAL_INTERVAL_S, RefusalLog
from tests.clocks import FakeClock


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_first_refusal_is_logged_and_repetitions_are_counted(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = RefusalLog(clock)
    while clock.now < 2.5 * REFUSAL_INTERVAL_S:
        log.record("agent w1", "it is not enrolled")
        clock.now += 10.0
    first, *counts = messages(caplog)
    assert first.endswith(": refused agent w1: it is not enrolled")
    assert counts == ["refused 60 times more in the last 600 s: agent w1: it is not enrolled"] * 2


def test_many_agents_share_one_count(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog(clock)
    for number in range(10 * MAX_REFUSAL_KINDS):
        log.record(f"w{number}", "a")
    assert len(messages(caplog)) == MAX_REFUSAL_KINDS + 1
    clock.now = REFUSAL_INTERVAL_S
    log.record("new", "a")
    assert messages(caplog)[-1] == (
        f"refused {9 * MAX_REFUSAL_KINDS} times more in the last 600 s: other agents"
    )
