"""Heartbeat monitoring: detects workers whose agents have gone silent or take no messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.wire.hub import WORKER_LOST_AFTER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.connections import AgentConnection


class HeartbeatMonitor:
    """Periodic check that each worker sends messages, and takes those that it is sent."""

    def __init__(self, heartbeat_s: float, now: float) -> None:
        self.interval_s = heartbeat_s / 2
        self.timeout_s = WORKER_LOST_AFTER * heartbeat_s
        self._stalled_after_s = heartbeat_s
        self._checked_at = now

    def lost(
        self, registered: Iterable[tuple[AgentConnection, ConnectedWorker]], now: float
    ) -> list[tuple[AgentConnection, ConnectedWorker, str]]:
        """Return the `registered` workers that have timed out, and why.

        None have if this check is late: the gateway itself was stalled, and must read what agents
        sent meanwhile first.
        """
        elapsed_s, self._checked_at = now - self._checked_at, now
        if elapsed_s > self._stalled_after_s:
            return []
        return [
            (connection, worker, reason)
            for connection, worker in registered
            if (reason := self._reason(connection, worker, now))
        ]

    def _reason(self, connection: AgentConnection, worker: ConnectedWorker, now: float) -> str:
        if now - worker.last_seen_at > self.timeout_s:
            return f"no message from worker {worker.id!r} for {self.timeout_s:g} s"
        if connection.unread_s() > self.timeout_s:
            return f"worker {worker.id!r} has taken no control message for {self.timeout_s:g} s"
        return ""
