"""Open agent connections, and those that are lost."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from synergai.errors import SynergaiError, Unavailable
from synergai.runtime.send_queue import SendQueue
from synergai.wire.limits import WORKER_LOST_AFTER
from synergai.wire.status import MAX_DETAILS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gateway.entry.access.workers import JoiningWorker
    from gateway.fleet.worker import ConnectedWorker
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import WorkerId
    from synergai.v1 import hub_pb2

_CONTROL_LIMIT: Final = 1024

_log = logging.getLogger(__name__)


def _control_queue() -> SendQueue[hub_pb2.GatewayControl]:
    return SendQueue(_CONTROL_LIMIT)


@dataclass(slots=True, eq=False)
class AgentConnection:
    """An agent's connection: its control stream, and its work stream if it has one.

    Attributes:
        joining: identity that it was admitted with; None for an agent of this process.
        id: secret that the agent's work stream must present (``session`` in the protocol).
        end_call: ends the control stream while its handler waits for the agent to read.
        unread_s: time for which it has waited, and the agent has taken nothing; 0 if it does not.
    """

    control: SendQueue[hub_pb2.GatewayControl] = field(default_factory=_control_queue)
    worker: ConnectedWorker | None = None
    joining: JoiningWorker | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    end_call: Callable[[SynergaiError], None] = lambda _: None
    unread_s: Callable[[], float] = lambda: 0.0

    def close(self, error: SynergaiError | None = None) -> None:
        self.control.close(error)
        if error is not None and self.unread_s():
            self.end_call(error)
        if self.worker is not None:
            self.worker.orders.close(error)


class AgentConnections:
    """All agent connections; registered ones by worker and by connection id."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._open: set[AgentConnection] = set()
        self._by_worker: dict[WorkerId, AgentConnection] = {}
        self._by_id: dict[str, AgentConnection] = {}

    def open(self) -> AgentConnection:
        """Return a new connection, not registered yet."""
        connection = AgentConnection()
        self._open.add(connection)
        return connection

    def discard(self, connection: AgentConnection) -> None:
        self._open.discard(connection)

    def close(self, error: SynergaiError) -> None:
        for connection in list(self._open):
            connection.close(error)

    def register(
        self,
        connection: AgentConnection,
        worker: ConnectedWorker,
        joining: JoiningWorker | None = None,
    ) -> None:
        """Bind the connection to `worker`, which was admitted as `joining`."""
        connection.worker = worker
        connection.joining = joining
        worker.control = connection.control
        self._by_worker[worker.id] = connection
        self._by_id[connection.id] = connection

    def unregister(self, connection: AgentConnection) -> ConnectedWorker | None:
        """Unbind the connection; return its worker, or None if it was not registered."""
        worker = connection.worker
        if worker is None or self._by_id.pop(connection.id, None) is None:
            return None
        del self._by_worker[worker.id]
        return worker

    def of_worker(self, worker_id: WorkerId) -> AgentConnection | None:
        return self._by_worker.get(worker_id)

    def authenticate(self, connection_id: str) -> tuple[AgentConnection, ConnectedWorker]:
        connection = self._by_id.get(connection_id)
        if connection is None or connection.worker is None:
            raise Unavailable("unknown connection id: register on a control stream first")
        return connection, connection.worker

    def registered(self) -> Iterator[tuple[AgentConnection, ConnectedWorker]]:
        for connection in list(self._by_worker.values()):
            if connection.worker is not None:
                yield connection, connection.worker

    def refuse(self, connection: AgentConnection, error: SynergaiError) -> None:
        """Close the connection of an agent at fault, and log the reason."""
        if isinstance(error, Unavailable):
            return
        self._metrics.refused_agents += 1
        name = "an agent" if connection.worker is None else f"agent {connection.worker.id}"
        _log.warning("refused %s: %s", name, str(error)[:MAX_DETAILS])
        connection.close(error)


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
