"""What preloading cost, and how much of it was of no use."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from synergai.domain import Session, WorkerId

    _Key: TypeAlias = tuple[WorkerId, Session]


class PreloadCosts:
    """Seconds of loading sessions before they were needed, until a query uses them."""

    def __init__(self) -> None:
        self.loads = 0
        self.total_s = 0.0
        self.waiting: dict[_Key, float] = {}
        self._wasted_s = 0.0
        # Loads in flight, with their estimates in seconds.
        self.loading: dict[_Key, float] = {}

    @property
    def unused_s(self) -> float:
        """Time of the loads that no query has used, of sessions still loaded or dropped since."""
        return self._wasted_s + sum(self.waiting.values())

    def ordered(self, worker_id: WorkerId, session: Session, estimate_s: float) -> None:
        """Record that a worker was told to load a session."""
        self.loading[worker_id, session] = estimate_s

    def loaded(self, worker_id: WorkerId, session: Session, setup_s: float) -> None:
        """Record that a session is loaded; `setup_s` is the time that it took, 0 if unknown."""
        key = worker_id, session
        estimate_s = self.loading.pop(key, None)
        if estimate_s is not None:
            self.loads += 1
            self.waiting[key] = setup_s or estimate_s
            self.total_s += self.waiting[key]

    def used(self, worker_id: WorkerId, session: Session) -> None:
        """Record that an assignment uses a session."""
        self.waiting.pop((worker_id, session), None)
        self.loading.pop((worker_id, session), None)  # which is needed now

    def dropped(self, worker_id: WorkerId, session: Session) -> None:
        """Record that a session was dropped, or was not loaded."""
        self.loading.pop((worker_id, session), None)
        self._wasted_s += self.waiting.pop((worker_id, session), 0.0)

    def left(self, worker_id: WorkerId) -> None:
        """Record that a worker has left, with all of its sessions."""
        for other, session in [*self.loading, *self.waiting]:
            if other == worker_id:
                self.dropped(other, session)
