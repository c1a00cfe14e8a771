"""Which workers have fallen silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.protocol.hub import WORKER_LOST_AFTER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.connections import AgentLink


class SignsOfLife:
    """Looks from time to time when each worker was last heard.

    Args:
        heartbeat_s: how often agents are to give a sign of life.
        now: the time, in monotonic seconds.

    Attributes:
        look_every_s: how long to wait between two looks.
        patience_s: how long a worker may be silent.
    """

    def __init__(self, heartbeat_s: float, now: float) -> None:
        self.look_every_s = heartbeat_s / 2
        self.patience_s = WORKER_LOST_AFTER * heartbeat_s
        self._held_up_after_s = heartbeat_s
        self._looked_at = now

    def lost(
        self, registered: Iterable[tuple[AgentLink, ConnectedWorker]], now: float
    ) -> list[tuple[AgentLink, ConnectedWorker]]:
        """Those of the `registered` that have been silent for too long.

        None if the look itself is late: the gateway was held up, and what workers have said
        meanwhile is to be read before anybody counts as lost.
        """
        since_s, self._looked_at = now - self._looked_at, now
        if since_s > self._held_up_after_s:
            return []
        return [
            (link, worker) for link, worker in registered if now - worker.heard_at > self.patience_s
        ]
