"""Sessions that are being loaded: at most one of an engine with variants at a time in the fleet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from synergai.domain import EngineName, Session, WorkerId

_FACTOR: Final = 4.0
_MARGIN_S: Final = 30.0
"""A load that takes longer than the multiple of its estimate and this margin is forgotten."""
_RETRY_S: Final = 60.0
"""Time until a session that its worker dropped or did not load is loaded ahead again."""


class _Load(NamedTuple):
    worker_id: WorkerId
    session: Session
    until: float


class Loads:
    """The loads in flight by engine, whether ahead of time or for an assignment."""

    def __init__(self) -> None:
        self._by_engine: dict[EngineName, _Load] = {}
        self._failed: dict[tuple[WorkerId, Session], float] = {}
        self._unloading: set[tuple[WorkerId, Session]] = set()

    def begin(self, worker_id: WorkerId, session: Session, seconds: float, now: float) -> None:
        """Record that a worker begins to load a session, which is expected to take `seconds`."""
        until = now + _FACTOR * seconds + _MARGIN_S
        self._by_engine[session.engine] = _Load(worker_id, session, until)

    def is_loading(self, engine: EngineName, now: float) -> bool:
        """Return whether any worker loads a session of the engine."""
        load = self._by_engine.get(engine)
        if load is None:
            return False
        if load.until <= now:
            del self._by_engine[engine]
            return False
        return True

    def worker_is_loading(self, worker_id: WorkerId) -> bool:
        """Return whether the worker loads anything."""
        return any(load.worker_id == worker_id for load in self._by_engine.values())

    def end(self, worker_id: WorkerId, session: Session) -> None:
        """Record that a session is loaded, or that its assignment is over."""
        load = self._by_engine.get(session.engine)
        if load is not None and load.worker_id == worker_id and load.session == session:
            del self._by_engine[session.engine]

    def drop(self, worker_id: WorkerId, session: Session) -> None:
        """Record that a worker was told to drop a session."""
        self._unloading.add((worker_id, session))

    def dropped(self, worker_id: WorkerId, session: Session, now: float) -> bool:
        """Record that a session is not resident: it was dropped, or could not be loaded.

        Returns:
            Whether its worker decided that.
        """
        self.end(worker_id, session)
        if (worker_id, session) in self._unloading:
            self._unloading.discard((worker_id, session))
            return False
        self._failed[worker_id, session] = now + _RETRY_S
        return True

    def may_load(self, worker_id: WorkerId, session: Session, now: float) -> bool:
        """Return whether the session may be loaded ahead: it was not dropped lately."""
        return self._failed.get((worker_id, session), -math.inf) <= now

    def remove_worker(self, worker_id: WorkerId) -> None:
        """Forget the loads of a worker that left."""
        for engine, load in list(self._by_engine.items()):
            if load.worker_id == worker_id:
                del self._by_engine[engine]
        self._failed = {key: at for key, at in self._failed.items() if key[0] != worker_id}
        self._unloading = {key for key in self._unloading if key[0] != worker_id}

    def next_expiry(self, now: float) -> float:
        """Return when the next load is forgotten, after `now`; infinite if there is none."""
        instants = (load.until for load in self._by_engine.values() if load.until > now)
        return min(instants, default=math.inf)
