"""What preloading cost, and how much of it was of no use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gateway.fleet.worker import ConnectedWorker
    from synergai.domain import Session, WorkerId

    _Key: TypeAlias = tuple[WorkerId, Session]


@dataclass(slots=True)
class Cost:
    """Cost of loads, with the machine's energy as far as it has a power meter."""

    seconds: float = 0.0
    joules: float = 0.0

    def add(self, other: Cost) -> None:
        """Add the cost of another load."""
        self.seconds += other.seconds
        self.joules += other.joules


class Preloads:
    """Sessions that were loaded before they were needed, until a query uses them."""

    def __init__(self) -> None:
        self.loads = 0
        self.total = Cost()
        self.waiting: dict[_Key, Cost] = {}
        self._wasted = Cost()
        # Loads in flight, with their estimates in seconds.
        self.loading: dict[_Key, float] = {}

    @property
    def unused(self) -> Cost:
        """Cost of the loads that no query has used, of sessions still loaded or dropped since."""
        unused = Cost()
        for cost in (self._wasted, *self.waiting.values()):
            unused.add(cost)
        return unused

    def ordered(self, worker_id: WorkerId, session: Session, estimate_s: float) -> None:
        """Record that a worker was told to load a session."""
        self.loading[worker_id, session] = estimate_s

    def loaded(self, worker: ConnectedWorker, session: Session, setup_s: float) -> None:
        """Record that a session is loaded; `setup_s` is the time that it took, 0 if unknown."""
        key = worker.id, session
        estimate_s = self.loading.pop(key, None)
        if estimate_s is None:
            return
        seconds = setup_s or estimate_s
        cost = Cost(seconds, seconds * (worker.power.watts or 0.0))
        self.loads += 1
        self.total.add(cost)
        self.waiting[key] = cost

    def used(self, worker_id: WorkerId, session: Session) -> None:
        """Record that an assignment uses a session."""
        self.waiting.pop((worker_id, session), None)
        self.loading.pop((worker_id, session), None)  # which is needed now

    def dropped(self, worker_id: WorkerId, session: Session) -> None:
        """Record that a session was dropped, or was not loaded."""
        self.loading.pop((worker_id, session), None)
        if (cost := self.waiting.pop((worker_id, session), None)) is not None:
            self._wasted.add(cost)

    def left(self, worker_id: WorkerId) -> None:
        """Record that a worker has left, with all of its sessions."""
        for other, session in [*self.loading, *self.waiting]:
            if other == worker_id:
                self.dropped(other, session)
