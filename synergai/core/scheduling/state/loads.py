"""Sessions that are being loaded: at most one of an engine with variants at a time in the fleet.

A load that takes clearly longer than estimated is overdue: it no longer holds back other workers,
but still its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Set

    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import EngineName, Session, WorkerId

PATIENCE: Final = 3.0
MARGIN_S: Final = 1.0
"""A load is overdue after this multiple of its estimate, and this margin."""
LIMIT_MARGIN_S: Final = 10.0
"""Workers end a preload after the same multiple of its estimate, and this margin."""
UNKNOWN_S: Final = 10.0
"""Assumed duration of an unknown load."""
FIRST_RETRY_S: Final = 5.0
"""Time until a session that its worker did not load is preloaded again, which then doubles."""
MEMORY_RETRY_S: Final = 60.0
"""The same of a session that its worker dropped or had no room for."""
LONGEST_RETRY_S: Final = 600.0
"""The longest such time."""
_FORGOTTEN_S: Final = 60.0
"""Time for which an overdue load holds back its own worker, which should report its end."""


def overdue_at(began: float, seconds: float) -> float:
    """Return when a load that was commanded at `began` is overdue.

    `seconds` is the estimate until it is loaded, with the work ahead of it; infinite if unknown.
    """
    return began + PATIENCE * (seconds if math.isfinite(seconds) else UNKNOWN_S) + MARGIN_S


def preload_limit_s(seconds: float) -> float:
    """Return how long a preload may take before it hangs; `seconds` is the estimate, or 0."""
    return PATIENCE * (seconds or UNKNOWN_S) + LIMIT_MARGIN_S


class Loads:
    """The loads in flight, whether preloads or for an assignment; `engines` have some."""

    def __init__(self) -> None:
        # By engine, worker and session: when it is overdue.
        self._by_engine: dict[EngineName, dict[tuple[WorkerId, Session], float]] = {}
        self.engines: Set[EngineName] = self._by_engine.keys()
        # By worker and session: since when a load continues without an assignment, and whether also
        # while the worker has others.
        self._apart: dict[tuple[WorkerId, Session], tuple[float, bool]] = {}
        # By worker and session: when it may be preloaded again, and how long that was.
        self._failed: dict[tuple[WorkerId, Session], tuple[float, float]] = {}
        # By worker and session: when it may be told again.
        self._unloading: dict[tuple[WorkerId, Session], float] = {}

    def begin(self, worker_id: WorkerId, session: Session, seconds: float, now: float) -> None:
        """Record that a worker is told to load a session; see `overdue_at`."""
        loads = self._by_engine.get(session.engine, {})
        # The end of some may never have been reported.
        loads = {key: overdue for key, overdue in loads.items() if overdue + _FORGOTTEN_S > now}
        loads[worker_id, session] = overdue_at(now, seconds)
        self._by_engine[session.engine] = loads

    def may_begin(self, engine: EngineName, worker_id: WorkerId, now: float) -> bool:
        """Return whether a worker may load a session of the engine.

        Not while it loads another one itself, nor while another worker does that is not overdue.
        """
        loads = self._by_engine.get(engine)
        if not loads:
            return True
        return not any(
            overdue > now or (loading == worker_id and overdue + _FORGOTTEN_S > now)
            for (loading, _), overdue in loads.items()
        )

    def worker_is_loading(self, worker_id: WorkerId, now: float) -> bool:
        """Return whether the worker loads anything."""
        return any(
            loading == worker_id and overdue + _FORGOTTEN_S > now
            for loads in self._by_engine.values()
            for (loading, _), overdue in loads.items()
        )

    def goes_on(
        self, worker_id: WorkerId, session: Session, since: float, *, concurrent: bool
    ) -> None:
        """Record a load that continues without an assignment.

        A `concurrent` one continues while the worker has assignments, not only while it has none.
        """
        if not self._apart.get((worker_id, session), (0.0, False))[1]:
            self._apart[worker_id, session] = since, concurrent

    def is_apart(self, worker_id: WorkerId, session: Session) -> bool:
        """Return whether a load continues without an assignment."""
        return (worker_id, session) in self._apart

    def left_s(self, worker: WorkerRecord, session: Session, seconds: float, now: float) -> float:
        """Return what is left of a load: all of it, unless it is in progress and not overdue."""
        known = self._apart.get((worker.id, session))
        if known is None or now > overdue_at(known[0], seconds):
            return seconds
        since, concurrent = known
        if not concurrent:
            since = now if worker.leases else max(since, worker.idle_since)
        until = worker.free_at(now) if concurrent else now
        return max(0.0, seconds - (until - since))

    def end(self, worker_id: WorkerId, session: Session) -> None:
        """Record that a load is over, or the assignment that needs it."""
        self._apart.pop((worker_id, session), None)
        loads = self._by_engine.get(session.engine)
        if loads is not None and loads.pop((worker_id, session), None) is not None and not loads:
            del self._by_engine[session.engine]

    def drop(self, worker_id: WorkerId, session: Session, now: float) -> None:
        """Record that a worker was told to drop a session."""
        self._unloading[worker_id, session] = now + UNKNOWN_S

    def may_drop_at(self, worker_id: WorkerId, session: Session) -> float:
        """Return from when a worker may be told to drop a session.

        It does not drop one that it has needed since, and does not report that.
        """
        return self._unloading.get((worker_id, session), -math.inf)

    def loaded(self, worker_id: WorkerId, session: Session) -> None:
        """Record that a session is loaded."""
        self.end(worker_id, session)
        self._failed.pop((worker_id, session), None)

    def dropped(
        self, worker_id: WorkerId, session: Session, now: float, *, for_memory: bool = False
    ) -> bool:
        """Record that a session was dropped or not loaded; return whether its worker decided.

        With `for_memory`, there was no room for it, or it made room for another one.
        """
        self.end(worker_id, session)
        key = worker_id, session
        if self._unloading.pop(key, None) is not None:
            return False
        _, last_s = self._failed.get(key, (0.0, 0.0))
        first_s = MEMORY_RETRY_S if for_memory else FIRST_RETRY_S
        retry_s = min(max(2.0 * last_s, first_s), LONGEST_RETRY_S)
        self._failed[key] = now + retry_s, retry_s
        return True

    def may_load(self, worker_id: WorkerId, session: Session, now: float) -> bool:
        """Return whether the session may be preloaded: it was not dropped lately."""
        return self._failed.get((worker_id, session), (-math.inf, 0.0))[0] <= now

    def remove_worker(self, worker_id: WorkerId) -> None:
        """Forget the loads of a worker that left."""
        for loads in list(self._by_engine.values()):
            for loading, session in list(loads):
                if loading == worker_id:
                    self.end(loading, session)
        self._apart = {key: at for key, at in self._apart.items() if key[0] != worker_id}
        self._failed = {key: at for key, at in self._failed.items() if key[0] != worker_id}
        self._unloading = {key: at for key, at in self._unloading.items() if key[0] != worker_id}

    def next_change(self, now: float) -> float:
        """Return when the next load is overdue or forgotten, after `now`; infinite if none is."""
        instants = (
            at
            for loads in self._by_engine.values()
            for overdue in loads.values()
            for at in (overdue, overdue + _FORGOTTEN_S)
            if at > now
        )
        return min(instants, default=math.inf)
