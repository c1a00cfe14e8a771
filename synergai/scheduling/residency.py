"""Residency: which sessions workers load before they are needed, and which they drop for them.

Of an engine with variants, the fastest one is kept loaded wherever the engine is served, as are
those that its load asks for next. Other engines are loaded by idle workers if recent arrivals make
them likely, when the operator wants that. A session is dropped only for a likelier one, and only if
the memory would not suffice for both. One session of an engine is loaded at a time in the whole
fleet, and one of all engines on a worker.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.scheduling.events import Load, Unload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.domain import EngineName, Session
    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.events import Command
    from synergai.scheduling.fleet import Fleet
    from synergai.scheduling.loads import Loads
    from synergai.scheduling.settings import SchedulingSettings
    from synergai.scheduling.state import WorkerRecord
    from synergai.scheduling.variants import Variants

HALF_LIFE_S: Final = 600.0
"""Time after which an arrival counts half."""
LEAST: Final = 0.05
"""Weight of arrivals below which an engine is not loaded ahead."""
PRIOR: Final = 0.2
"""Weight of an engine that never arrived, if all are loaded ahead."""
BETTER: Final = 2.0
"""Ratio of weights from which a session is dropped for another one."""
SESSION_BYTES: Final = 512 << 20
"""Assumed size of a session of unknown size."""
VARIANT_BYTES: Final = 64 << 20
"""The same of a variant, which shares the host of others."""
PLANNED_EVERY_S: Final = 0.1
_WORKERS: Final = 64
_ENGINES: Final = 32
"""Workers and engines that one event looks at."""


class _Wish(NamedTuple):
    """A session to load on a worker, and how likely it is to be used."""

    weight: float
    worker: WorkerRecord
    estimate: Estimate


class Residency:
    """Plans loads ahead of time.

    Args:
        fleet: the workers.
        estimator: knows what loading costs.
        variants: knows what load asks of engines with variants.
        loads: the loads in flight.
        commands: output; receives ``Load`` and ``Unload``.
        settings: scheduling options.

    Attributes:
        due: something has changed since the last plan.
    """

    def __init__(
        self,
        fleet: Fleet,
        estimator: Estimator,
        variants: Variants,
        loads: Loads,
        commands: list[Command],
        settings: SchedulingSettings,
    ) -> None:
        self._fleet = fleet
        self._estimator = estimator
        self._variants = variants
        self._loads = loads
        self._commands = commands
        self._mode = settings.load_ahead
        self._counts: dict[EngineName, tuple[float, float]] = {}
        self._planned_at = -math.inf
        self.due = False

    @property
    def is_on(self) -> bool:
        """Whether any session may be loaded ahead."""
        return self._mode != "never" or (self._variants.is_on and bool(self._variants.engines))

    def arrived(self, engine: EngineName, now: float) -> None:
        """Count an arrival."""
        self._counts[engine] = self._count(engine, now) + 1.0, now
        self.due = True

    def next_due(self) -> float:
        """Return when to plan again; infinite if nothing has changed."""
        return self._planned_at + PLANNED_EVERY_S if self.due else math.inf

    def plan(self, now: float) -> None:
        """Command loads ahead, at a limited rate."""
        if now < self._planned_at + PLANNED_EVERY_S:
            return
        self.due = False
        self._planned_at = now
        wishes = sorted(
            self._wishes(now),
            key=lambda wish: (-wish.weight, wish.estimate.setup_s, wish.worker.index),
        )
        for wish in wishes:
            worker, session = wish.worker, wish.estimate.session
            engine = session.engine
            if self._loads.is_loading(engine, now) or self._loads.worker_is_loading(worker.id):
                continue
            if self._makes_room(wish, now):
                self._loads.begin(worker.id, session, wish.estimate.setup_s, now)
                self._commands.append(Load(worker.id, session))

    # --- wishes -------------------------------------------------------------------------

    def _wishes(self, now: float) -> Iterator[_Wish]:
        weights = sorted(
            (
                (weight, each)
                for each in self._engines()
                if (weight := self._weight(each, now)) > LEAST
            ),
            key=lambda pair: (-pair[0], pair[1]),
        )
        workers = 0
        for worker in self._fleet.workers.values():
            if worker.withdrawn or not worker.worker.keeps_sessions:
                continue
            workers += 1
            if workers > _WORKERS:
                return
            for weight, engine in weights[:_ENGINES]:
                if engine in worker.engines:
                    for estimate in self._missing(worker, engine, now):
                        yield _Wish(weight, worker, estimate)

    def _engines(self) -> set[EngineName]:
        if self._mode == "never":
            return {each for each in self._counts if each in self._variants.engines}
        if self._mode == "requested":
            return set(self._counts)
        return {each for worker in self._fleet.workers.values() for each in worker.engines}

    def _missing(self, worker: WorkerRecord, engine: EngineName, now: float) -> Iterator[Estimate]:
        """Yield what is to be loaded of an engine on a worker, first things first."""
        if engine in self._variants.engines and self._variants.is_on:
            for estimate in self._variants.wanted(engine, worker, now):
                if self._is_missing(worker, estimate, now):
                    yield estimate
                    return
        elif not worker.leases and (fastest := self._estimator.estimate(engine, worker)):
            mode = fastest.configuration.power_mode
            if mode and worker.power_mode not in (None, mode):
                return
            if self._is_missing(worker, fastest, now):
                yield fastest

    def _is_missing(self, worker: WorkerRecord, estimate: Estimate, now: float) -> bool:
        session = estimate.session
        return session not in worker.sessions and self._loads.may_load(worker.id, session, now)

    def _count(self, engine: EngineName, now: float) -> float:
        count, at = self._counts.get(engine, (0.0, now))
        return count * math.exp2((at - now) / HALF_LIFE_S)

    def _weight(self, engine: EngineName, now: float) -> float:
        """Return how likely the engine is to be used: by its recent arrivals."""
        prior = PRIOR if self._mode == "all" else 0.0
        return self._count(engine, now) + prior

    # --- memory -------------------------------------------------------------------------

    def _makes_room(self, wish: _Wish, now: float) -> bool:
        """Return whether a worker has room for a session; drop one that is less likely for it."""
        worker = wish.worker
        if self._has_room(worker, wish.estimate.session):
            return True
        idle = [
            (self._weight(session.engine, now), session)
            for session in worker.sessions
            if session != wish.estimate.session and self._may_drop(worker, session, now)
        ]
        if not idle:
            return False
        weight, session = min(idle)
        if BETTER * weight < wish.weight:
            self._loads.drop(worker.id, session)
            self._commands.append(Unload(worker.id, session))
            self.due = True  # the load follows once the session is dropped
        return False

    def _has_room(self, worker: WorkerRecord, session: Session) -> bool:
        if len(worker.sessions) >= worker.most_sessions:
            return False
        if not worker.worker.memory_bytes:
            return True
        used = sum(self._size(worker, each) for each in worker.sessions)
        return used + self._size(worker, session) <= worker.worker.memory_bytes

    @staticmethod
    def _size(worker: WorkerRecord, session: Session) -> int:
        known = worker.worker.session_bytes.get(session.engine)
        if known is not None:
            return known
        return VARIANT_BYTES if session.configuration.variant else SESSION_BYTES

    def _may_drop(self, worker: WorkerRecord, session: Session, now: float) -> bool:
        """Return whether a session is neither in use nor the fastest of its engine's variants."""
        if any(lease.session == session for lease in worker.leases.values()):
            return False
        wanted = self._variants.wanted(session.engine, worker, now)
        return not (session.configuration.variant and wanted and wanted[0].session == session)
