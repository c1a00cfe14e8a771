"""Relaying of tensors between workers that cannot reach each other; they pass unread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.fleet.worker import SendTensors
from synergai.domain import WorkerId
from synergai.protocol.work_messages import RelayedTensors

if TYPE_CHECKING:
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.connections import AgentConnections
    from synergai.protocol.work_messages import Reports

MOST_WANTED: Final = 1024
"""Tensors that one worker waits for; more than it can have queries in flight.

It gives up after a while, which it does not tell: those that it asked for first are forgotten."""


class Relays:
    """Passes held tensors on to the workers that want them.

    The token alone says who may have them: only their holder, this gateway and the worker that was
    told to pull them know it.
    """

    def __init__(self, connections: AgentConnections) -> None:
        self._connections = connections
        # By the worker that wants them: their tokens, and who holds them.
        self._wanted: dict[ConnectedWorker, dict[str, WorkerId]] = {}

    def apply(self, worker: ConnectedWorker, reports: Reports) -> None:
        """Apply a message of reports."""
        for wanted in reports.wanted:
            self._want(worker, wanted.token, WorkerId(wanted.worker_id))
        for tensors in reports.relayed:
            self._pass_on(worker.id, tensors)

    def left(self, worker: ConnectedWorker) -> None:
        """Tell those who wait for a worker that left that its tensors are lost."""
        self._wanted.pop(worker, None)
        for wanted in list(self._wanted.values()):
            for token in [token for token, holder in wanted.items() if holder == worker.id]:
                self._pass_on(worker.id, RelayedTensors(token, ()))

    def _want(self, worker: ConnectedWorker, token: str, holder_id: WorkerId) -> None:
        wanted = self._wanted.setdefault(worker, {})
        wanted.pop(token, None)
        wanted[token] = holder_id
        if len(wanted) > MOST_WANTED:
            del wanted[next(iter(wanted))]
        connection = self._connections.of_worker(holder_id)
        holder = None if connection is None else connection.worker
        # Half of the queue remains for orders: a worker may ask for what another does not hold.
        if holder is None or holder.orders.closed or holder.orders.is_half_full:
            self._pass_on(holder_id, RelayedTensors(token, ()))
        else:
            holder.orders.put(SendTensors(token))

    def _pass_on(self, holder_id: WorkerId, tensors: RelayedTensors) -> None:
        for worker, wanted in self._wanted.items():
            if wanted.get(tensors.token) == holder_id:
                del wanted[tensors.token]
                worker.orders.put(tensors)
