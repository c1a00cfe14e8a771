"""The agents that are connected: who each is, and what its streams are known by."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.send_queue import Outbox
from synergai.errors import SynergaiError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.fleet.worker import ConnectedWorker
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import WorkerId
    from synergai.v1 import hub_pb2

_log = logging.getLogger(__name__)

_CONTROL_LIMIT: Final = 1024


@dataclass(slots=True, eq=False)
class AgentLink:
    """An agent's connection.

    Attributes:
        control: what waits to be sent on the control stream.
        worker: who it is; None until it has registered.
        session: what its work stream has to show.
    """

    control: Outbox[hub_pb2.GatewayControl] = field(default_factory=lambda: Outbox(_CONTROL_LIMIT))
    worker: ConnectedWorker | None = None
    session: str = field(default_factory=lambda: secrets.token_hex(16))

    def close(self, error: SynergaiError | None = None) -> None:
        """End both streams."""
        self.control.close(error)
        if self.worker is not None:
            self.worker.orders.close(error)


class Links:
    """Every agent's connection; those that have registered by worker and by session.

    Args:
        metrics: where refused agents are counted.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._open: set[AgentLink] = set()
        self._by_worker: dict[WorkerId, AgentLink] = {}
        self._by_session: dict[str, AgentLink] = {}

    def open(self) -> AgentLink:
        """A new connection, of an agent that has yet to register."""
        link = AgentLink()
        self._open.add(link)
        return link

    def ended(self, link: AgentLink) -> None:
        """A connection's control stream is over."""
        self._open.discard(link)

    def close(self, error: SynergaiError) -> None:
        """End all connections."""
        for link in list(self._open):
            link.close(error)

    def register(self, link: AgentLink, worker: ConnectedWorker) -> None:
        """The agent is the agent of `worker`, which nobody else is."""
        link.worker = worker
        worker.control = link.control
        self._by_worker[worker.id] = link
        self._by_session[link.session] = link

    def forget(self, link: AgentLink) -> ConnectedWorker | None:
        """Its agent is nobody's any more; return whose it was, unless that was said before."""
        worker = link.worker
        if worker is None or self._by_session.pop(link.session, None) is None:
            return None
        del self._by_worker[worker.id]
        return worker

    def of_worker(self, worker_id: WorkerId) -> AgentLink | None:
        """The connection of a worker that has registered."""
        return self._by_worker.get(worker_id)

    def of_session(self, session: str) -> tuple[AgentLink, ConnectedWorker]:
        """The connection, and its worker, that a work stream with this session belongs to.

        Raises:
            Unavailable: there is none.
        """
        link = self._by_session.get(session)
        if link is None or link.worker is None:
            raise Unavailable("no such session: register on a control stream first")
        return link, link.worker

    def registered(self) -> Iterator[tuple[AgentLink, ConnectedWorker]]:
        """Every connection that has registered, and its worker."""
        for link in list(self._by_worker.values()):
            if link.worker is not None:
                yield link, link.worker

    def refuse(self, link: AgentLink, error: SynergaiError) -> None:
        """If the agent is at fault, end its connection, and say once, under an id, why."""
        if isinstance(error, Unavailable):
            return
        self._metrics.refused_agents.inc()
        name = link.worker.id if link.worker is not None else "not registered"
        _log.warning("fault %s: agent %s refused: %s", secrets.token_hex(4), name, error)
        link.close(error)
