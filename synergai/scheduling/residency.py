"""Residency: which sessions workers load before they are needed, and which they drop for them.

Of an engine with variants, the fastest one is kept loaded wherever the engine is served, as are
those that its load asks for next. Other engines are loaded by idle workers if recent arrivals make
them likely, if the operator wants that: after a job, which is split, by all workers; of requests,
each pays for one worker that has the engine loaded. A session is dropped only for one that is worth
more, only if it was not used lately, and only if the memory would not suffice for both. One session
of an engine is loaded at a time in the whole fleet, and one of all engines on a worker.
"""

from __future__ import annotations

import math
from collections import Counter
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
    from synergai.scheduling.sizes import SessionSizes
    from synergai.scheduling.state import WorkerRecord
    from synergai.scheduling.variants import Variants

HALF_LIFE_S: Final = 600.0
"""Time after which an arrival counts half."""
LEAST: Final = 0.05
"""Weight of arrivals below which an engine is not preloaded."""
PRIOR: Final = 0.2
"""Weight of an engine that never arrived, if all are preloaded."""
BETTER: Final = 2.0
"""Ratio of weights from which a session is dropped for another one."""
LEAST_S: Final = 1.0
"""Load time that at least counts: a variant that is missing costs accuracy as well."""
RECENT_S: Final = 60.0
"""Time after its last use in which a session is not dropped for another one."""
PLANNED_EVERY_S: Final = 0.1
_WORKERS: Final = 64
_ENGINES: Final = 32
"""Workers and engines that one event looks at."""


class _Wish(NamedTuple):
    """A session to load on a worker, and how likely it is to be used."""

    value: float
    worker: WorkerRecord
    estimate: Estimate


class Residency:
    """Plans which sessions are preloaded.

    Args:
        fleet: the workers.
        estimator: knows what loading costs.
        variants: knows what load asks of engines with variants.
        loads: the loads in flight.
        sizes: memory that sessions take.
        commands: output; receives ``Load`` and ``Unload``.
        settings: scheduling options.

    Attributes:
        due: something has changed since the last plan.
        rests_until: no plan is made before, as plans are limited in their rate.
        again_at: when to plan again although nothing has changed: a load is overdue by then, or the
            last plan looked at a part of the fleet. Infinite otherwise.
    """

    def __init__(
        self,
        fleet: Fleet,
        estimator: Estimator,
        variants: Variants,
        loads: Loads,
        sizes: SessionSizes,
        commands: list[Command],
        settings: SchedulingSettings,
    ) -> None:
        self._fleet = fleet
        self._estimator = estimator
        self._variants = variants
        self._loads = loads
        self._sizes = sizes
        self._commands = commands
        self._mode = settings.preload
        self._counts: dict[EngineName, tuple[float, float]] = {}
        self._jobs: dict[EngineName, tuple[float, float]] = {}
        self.rests_until = -math.inf
        self._first_worker = 0
        self._rounds = 0
        self.due = False
        self.again_at = math.inf

    @property
    def is_on(self) -> bool:
        """Whether any session may be preloaded."""
        return self._mode != "never" or bool(self._variants.engines)

    def arrived(self, engine: EngineName, now: float, *, is_request: bool = False) -> None:
        """Count an arrival."""
        self._counts[engine] = _decayed(self._counts, engine, now) + 1.0, now
        if not is_request:
            self._jobs[engine] = _decayed(self._jobs, engine, now) + 1.0, now
        self.due = True

    def plan(self, now: float) -> None:
        """Command preloads, at a limited rate."""
        if now < self.rests_until:
            return
        if self.due:
            self._rounds = math.ceil(len(self._fleet.workers) / _WORKERS)
        self._rounds -= 1
        self.due = False
        self.again_at = now if self._rounds > 0 else math.inf
        self.rests_until = now + PLANNED_EVERY_S
        wishes = sorted(
            self._wishes(now),
            key=lambda wish: (-wish.value, wish.estimate.setup_s, wish.worker.index),
        )
        for wish in wishes:
            worker, session = wish.worker, wish.estimate.session
            engine = session.engine
            if self._loads.worker_is_loading(worker.id, now):
                continue
            if not self._loads.may_begin(engine, worker.id, now):
                self.again_at = min(self.again_at, self._loads.next_change(now))
                continue
            if self._make_room(wish, now):
                # Of a session that is not loaded, a setup of 0 s means that nothing is known.
                seconds = worker.free_at(now) - now + (wish.estimate.setup_s or math.inf)
                self._loads.begin(worker.id, session, seconds, now)
                self._loads.goes_on(worker.id, session, now, beside=False)
                known_s = seconds if math.isfinite(seconds) else 0.0
                self._commands.append(Load(worker.id, session, known_s))

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
        engines = [engine for _, engine in weights[:_ENGINES]]
        if self._mode == "requested":
            enough = self._loaded_enough(engines, now)
            engines = [engine for engine in engines if engine not in enough]
        for worker in self._next_workers():
            for engine in engines:
                if engine in worker.engines:
                    for estimate in self._missing(worker, engine, now):
                        value = self._value(worker, estimate.session, now)
                        yield _Wish(value, worker, estimate)

    def _next_workers(self) -> list[WorkerRecord]:
        """Return the workers of this plan; in a large fleet, following plans look at the others."""
        workers = [
            each
            for each in self._fleet.workers.values()
            if not each.withdrawn and each.worker.keeps_sessions
        ]
        first = self._first_worker if self._first_worker < len(workers) else 0
        self._first_worker = first + _WORKERS
        return workers[first : first + _WORKERS]

    def _engines(self) -> set[EngineName]:
        if self._mode == "never":
            return {each for each in self._counts if each in self._variants.engines}
        if self._mode == "requested":
            return set(self._counts)
        return {each for worker in self._fleet.workers.values() for each in worker.engines}

    def _missing(self, worker: WorkerRecord, engine: EngineName, now: float) -> Iterator[Estimate]:
        """Yield the sessions of an engine to load on a worker, in order."""
        if engine in self._variants.engines:
            for estimate in self._variants.wanted(engine, worker, now):
                if self._is_missing(worker, estimate, now):
                    yield estimate
                    return
        elif not worker.leases and (fastest := self._estimator.estimate(engine, worker)):
            if self._mode == "requested" and any(s.engine == engine for s in worker.sessions):
                return  # another configuration is used here
            mode = fastest.configuration.power_mode
            if mode and worker.power_mode not in (None, mode):
                return
            if self._is_missing(worker, fastest, now):
                yield fastest

    def _is_missing(self, worker: WorkerRecord, estimate: Estimate, now: float) -> bool:
        session = estimate.session
        return session not in worker.sessions and self._loads.may_load(worker.id, session, now)

    def _loaded_enough(self, engines: list[EngineName], now: float) -> set[EngineName]:
        """Return the engines without variants that enough workers have loaded, or are to load."""
        most = {}
        for engine in engines:
            if engine not in self._variants.engines:
                is_split = _decayed(self._jobs, engine, now) > LEAST
                arrivals = math.inf if is_split else _decayed(self._counts, engine, now)
                most[engine] = min(arrivals, len(self._fleet.serving(engine)))
        if not most:
            return set()
        loaded: Counter[EngineName] = Counter()
        for worker in self._fleet.workers.values():
            if not worker.withdrawn:
                sessions = {*worker.sessions, *(each.session for each in worker.leases.values())}
                loaded.update({session.engine for session in sessions})
        return {engine for engine, count in most.items() if loaded[engine] >= count}

    def _weight(self, engine: EngineName, now: float) -> float:
        """Return how likely the engine is to be used: by its recent arrivals."""
        prior = PRIOR if self._mode == "all" else 0.0
        return _decayed(self._counts, engine, now) + prior

    def _value(self, worker: WorkerRecord, session: Session, now: float) -> float:
        """Return the seconds of loading that a session is expected to save, per byte."""
        load_s = max(self._estimator.load_s(session, worker), LEAST_S)
        size = max(self._sizes.of(worker, session), 1)
        return self._weight(session.engine, now) * load_s / size

    # --- memory -------------------------------------------------------------------------

    def _make_room(self, wish: _Wish, now: float) -> bool:
        """Return whether a worker has room for a session; if not, drop a less likely one."""
        worker = wish.worker
        if self._has_room(worker, wish.estimate.session, now):
            return True
        idle = [
            (self._value(worker, session, now), session)
            for session in worker.sessions
            if session != wish.estimate.session and self._may_drop(worker, session, now)
        ]
        if not idle:
            return False
        value, session = min(idle)
        if BETTER * value < wish.value:
            if self._loads.may_drop_at(worker.id, session) <= now:
                self._loads.drop(worker.id, session, now)
                self._commands.append(Unload(worker.id, session))
            # The load follows once the session is dropped.
            self.again_at = min(self.again_at, self._loads.may_drop_at(worker.id, session))
        return False

    def _has_room(self, worker: WorkerRecord, session: Session, now: float) -> bool:
        if len(worker.sessions) >= worker.most_sessions or now < worker.full_until:
            return False
        if not worker.worker.memory_bytes:
            return True
        used = sum(self._sizes.of(worker, each) for each in worker.sessions)
        return used + self._sizes.of(worker, session) <= worker.worker.memory_bytes

    def _may_drop(self, worker: WorkerRecord, session: Session, now: float) -> bool:
        """Return whether a session is not used, now or lately, nor to be kept loaded always."""
        if (
            session in worker.worker.pinned
            or now < worker.used_at.get(session, -math.inf) + RECENT_S
        ):
            return False
        if any(lease.session == session for lease in worker.leases.values()):
            return False
        if not session.configuration.variant:
            return True
        fastest = self._variants.fastest(session.engine, worker, now)
        return fastest is None or fastest.session != session


def _decayed(
    counts: dict[EngineName, tuple[float, float]], engine: EngineName, now: float
) -> float:
    """Return the arrivals of an engine, those longer ago counting less."""
    count, at = counts.get(engine, (0.0, now))
    return count * math.exp2((at - now) / HALF_LIFE_S)
