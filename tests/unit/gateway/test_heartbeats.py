"""Which workers count as lost, at instants that the test names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gateway.hub.heartbeats import HeartbeatMonitor

if TYPE_CHECKING:
    from gateway.fleet.worker import ConnectedWorker


def heard(at: float) -> tuple[Any, ConnectedWorker]:
    return None, cast("ConnectedWorker", SimpleNamespace(last_seen_at=at))


@pytest.fixture
def signs() -> HeartbeatMonitor:
    """Of agents that give one every second; looked for until 10 s."""
    signs = HeartbeatMonitor(1.0, 0.0)
    for half_seconds in range(1, 21):
        signs.lost([], half_seconds * 0.5)
    return signs


def test_worker_is_lost_once_three_heartbeats_are_missing(signs: HeartbeatMonitor) -> None:
    silent, patient, fresh = heard(7.4), heard(7.6), heard(10.4)
    assert signs.lost([silent, patient, fresh], 10.5) == [silent]


def test_nobody_is_lost_by_what_a_gateway_that_was_held_up_has_not_read_yet(
    signs: HeartbeatMonitor,
) -> None:
    silent, alive = heard(9.0), heard(9.0)
    assert signs.lost([silent, alive], 20.0) == []
    alive[1].last_seen_at = 20.1
    assert signs.lost([silent, alive], 20.5) == [silent]
