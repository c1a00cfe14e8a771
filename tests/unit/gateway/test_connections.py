"""Connections of agents: heartbeats that are missing, and the log of refused agents."""

from types import SimpleNamespace
from typing import cast

import pytest

from gateway.fleet.worker import ConnectedWorker
from gateway.hub.connections import (
    MAX_REFUSAL_KINDS,
    REFUSAL_INTERVAL_S,
    AgentConnection,
    HeartbeatMonitor,
    RefusalLog,
)
from tests.clocks import FakeClock


def seen(at: float, unread_s: float = 0.0) -> tuple[AgentConnection, ConnectedWorker]:
    connection = SimpleNamespace(unread_s=lambda: unread_s)
    worker = SimpleNamespace(id="w1", last_seen_at=at)
    return cast("AgentConnection", connection), cast("ConnectedWorker", worker)


@pytest.fixture
def monitor() -> HeartbeatMonitor:
    """Return a monitor of heartbeats every second, checked until 10 s."""
    monitor = HeartbeatMonitor(1.0, 0.0)
    for half_seconds in range(1, 21):
        monitor.lost([], half_seconds * 0.5)
    return monitor


def test_worker_is_lost_once_three_heartbeats_are_missing(monitor: HeartbeatMonitor) -> None:
    silent, late, fresh = seen(7.4), seen(7.6), seen(10.4)
    reason = "no message from worker 'w1' for 3 s"
    assert monitor.lost([silent, late, fresh], 10.5) == [(*silent, reason)]


def test_worker_that_sends_heartbeats_but_takes_no_control_message_is_lost(
    monitor: HeartbeatMonitor,
) -> None:
    stuck, slow = seen(10.4, unread_s=3.1), seen(10.4, unread_s=2.9)
    reason = "worker 'w1' has taken no control message for 3 s"
    assert monitor.lost([stuck, slow], 10.5) == [(*stuck, reason)]


def test_stalled_gateway_reads_pending_messages_before_losing_workers(
    monitor: HeartbeatMonitor,
) -> None:
    silent, alive = seen(9.0), seen(9.0)
    assert monitor.lost([silent, alive], 20.0) == []
    alive[1].last_seen_at = 20.1
    assert [lost[:2] for lost in monitor.lost([silent, alive], 20.5)] == [silent]


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
