"""Connections of agents: heartbeats that are missing."""

from types import SimpleNamespace
from typing import cast

import pytest

from gateway.fleet.worker import ConnectedWorker
from gateway.hub.connections import AgentConnection, HeartbeatMonitor


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
