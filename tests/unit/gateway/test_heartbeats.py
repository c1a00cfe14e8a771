"""The heartbeat monitor, at given times."""

from types import SimpleNamespace
from typing import cast

import pytest

from gateway.fleet.worker import ConnectedWorker
from gateway.hub.connections import AgentConnection
from gateway.hub.heartbeats import HeartbeatMonitor


def seen(at: float) -> tuple[AgentConnection, ConnectedWorker]:
    return cast("AgentConnection", None), cast("ConnectedWorker", SimpleNamespace(last_seen_at=at))


@pytest.fixture
def monitor() -> HeartbeatMonitor:
    """Return a monitor of heartbeats every second, checked until 10 s."""
    monitor = HeartbeatMonitor(1.0, 0.0)
    for half_seconds in range(1, 21):
        monitor.lost([], half_seconds * 0.5)
    return monitor


def test_worker_is_lost_once_three_heartbeats_are_missing(monitor: HeartbeatMonitor) -> None:
    silent, late, fresh = seen(7.4), seen(7.6), seen(10.4)
    assert monitor.lost([silent, late, fresh], 10.5) == [silent]


def test_stalled_gateway_reads_pending_messages_before_losing_workers(
    monitor: HeartbeatMonitor,
) -> None:
    silent, alive = seen(9.0), seen(9.0)
    assert monitor.lost([silent, alive], 20.0) == []
    alive[1].last_seen_at = 20.1
    assert monitor.lost([silent, alive], 20.5) == [silent]
