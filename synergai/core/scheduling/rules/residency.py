"""Residency: which sessions workers load before they are needed, and which they drop for them.

Idle workers load the engines that they have, as far as memory suffices: the likeliest by recent
arrivals and those that take longest to load first. Of an engine with variants in use, the fastest
one is kept loaded wherever the engine is served, as are those that its load asks for next. A
session is dropped only for one that is worth more, only if it was not used lately, and only if the
memory would not suffice for both. One session of an engine is loaded at a time in the whole fleet,
and one of all engines on a worker.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.core.scheduling.events import Load, SessionDropped, Unload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.jobs import Lease
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import EngineName, Session, WorkerId

HALF_LIFE_S: Final = 600.0
"""Time after which an arrival counts half."""
LEAST: Final = 0.05
"""Weight of arrivals below which an engine is not in use any longer."""
PRIOR: Final = 0.2
"""Weight of an engine that never arrived."""
BETTER: Final = 2.0
"""Ratio of weights from which a session is dropped for another one."""
LEAST_S: Final = 1.0
"""Load time that at least counts: a variant that is missing costs accuracy as well."""
RECENT_S: Final = 60.0
"""Time after its last use in which a session is not dropped for another one."""
FULL_S: Final = 120.0
"""Time for which a worker without room for a preload is full, unless it drops a session."""
PLANNED_EVERY_S: Final = 0.1
_WORKERS: Final = 64
_SESSIONS: Final = 128
"""Workers, and sessions of theirs, that one event looks at."""


class _Wish(NamedTuple):
    """A session to load on a worker, and how likely it is to be used."""

    value: float
    worker: WorkerRecord
    estimate: Estimate


@dataclass(slots=True)
class _Memory:
    """What is known of the memory of a worker.

    Attributes:
        full_until: until when it is full, after it has refused to preload.
        most_sessions: number of sessions that fit, as seen; infinite if unknown.
    """

    used_at: dict[Session, float] = field(default_factory=dict)
    full_until: float = -math.inf
    most_sessions: float = math.inf


class Residency:
    """Plans which sessions are preloaded; next at `due_at`, infinite until something changes."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._preloads_all = state.settings.preload
        self._counts: dict[EngineName, tuple[float, float]] = {}
        self._first_worker = 0
        self._rounds = 0
        self._memories: defaultdict[int, _Memory] = defaultdict(_Memory)
        state.forget_worker.append(self._forget_worker)
        self._has_changed = False
        # No plan is made before, as plans are limited in their rate.
        self._rests_until = -math.inf
        self.due_at = math.inf

    def changed(self) -> None:
        """Plan again, as a worker or its work has changed."""
        if self._preloads_all or self._state.variants.engines:
            self._has_changed = True
            self.due_at = self._rests_until

    # --- observations -------------------------------------------------------------------

    def _forget_worker(self, worker: WorkerRecord) -> None:
        self._memories.pop(worker.index, None)

    def released(self, lease: Lease) -> None:
        """Record that an assignment of a session has ended."""
        if worker := self._state.fleet.workers.get(lease.assignment.worker_id):
            self._memories[worker.index].used_at[lease.session] = self._state.now
        self.changed()

    def loaded(self, worker: WorkerRecord) -> None:
        """Record that a worker has loaded a session."""
        memory = self._memories[worker.index]
        memory.most_sessions = max(memory.most_sessions, len(worker.sessions))

    def dropped(self, event: SessionDropped, worker: WorkerRecord, *, was_resident: bool) -> None:
        """Record what it says of a worker's memory that it dropped a session or did not load it."""
        state, session, now = self._state, event.session, self._state.now
        memory = self._memories[worker.index]
        memory.used_at.pop(session, None)
        if event.no_room and not was_resident:
            state.sizes.record(worker, session, event.bytes)
            if event.bytes <= state.sizes.free(worker):  # something else takes its memory
                memory.full_until = now + FULL_S
        elif was_resident:
            memory.full_until = -math.inf
        decided = state.loads.dropped(worker.id, session, now, for_memory=event.no_room)
        if (
            decided
            and was_resident
            and (state.loads.worker_is_loading(worker.id, now) or _is_loading(worker))
        ):
            # It made room for another one.
            memory.most_sessions = max(1, len(worker.sessions))

    # --- plans --------------------------------------------------------------------------

    def arrived(self, engine: EngineName) -> None:
        """Count an arrival."""
        if self._preloads_all or self._state.variants.engines:
            now = self._state.now
            self._counts[engine] = self._arrivals(engine, now) + 1.0, now
            self._has_changed = True
            self.due_at = self._rests_until

    def plan(self) -> None:
        """Command preloads."""
        now = self._state.now
        weights = self._weights(now)
        each_time = max(1, min(_WORKERS, _SESSIONS // max(1, len(weights))))
        if self._has_changed:
            self._rounds = math.ceil(len(self._state.fleet.workers) / each_time)
        self._rounds -= 1
        self._has_changed = False
        self._rests_until = now + PLANNED_EVERY_S
        self.due_at = self._rests_until if self._rounds > 0 else math.inf
        workers = self._next_workers(each_time)
        if self._state.loads.engines:
            workers = [
                each for each in workers if not self._state.loads.worker_is_loading(each.id, now)
            ]
        wishes = sorted(
            (wish for worker in workers for wish in self._wishes(worker, weights, now)),
            key=lambda wish: (-wish.value, wish.estimate.setup_s, wish.worker.index),
        )
        free_bytes: dict[WorkerId, float] = {}
        full: set[WorkerId] = set()
        for wish in wishes:
            worker, session = wish.worker, wish.estimate.session
            if self._state.loads.worker_is_loading(worker.id, now):
                continue
            if not self._state.loads.may_begin(session.engine, worker.id, now):
                self._plan_again(self._state.loads.next_change(now))
                continue
            if worker.id not in free_bytes:
                free_bytes[worker.id] = self._free_bytes(worker, now)
            if self._state.sizes.of(worker, session) <= free_bytes[worker.id]:
                self._load(wish, now)
            elif worker.id not in full:
                full.add(worker.id)  # for what is worth less, nothing else is dropped
                self._make_room(wish, weights, now)

    def _plan_again(self, at: float) -> None:
        self.due_at = min(self.due_at, max(at, self._rests_until))

    def _load(self, wish: _Wish, now: float) -> None:
        worker, session = wish.worker, wish.estimate.session
        # Of a session that is not loaded, a setup of 0 s means that nothing is known.
        seconds = worker.free_at(now) - now + (wish.estimate.setup_s or math.inf)
        self._state.loads.begin(worker.id, session, seconds, now)
        self._state.loads.goes_on(worker.id, session, now, concurrent=False)
        known_s = seconds if math.isfinite(seconds) else 0.0
        self._state.commands.append(Load(worker.id, session, known_s))

    # --- wishes -------------------------------------------------------------------------

    def _weights(self, now: float) -> dict[EngineName, float]:
        """Return how likely the engines are to be used: by their recent arrivals."""
        if self._preloads_all:
            return {each: self._arrivals(each, now) + PRIOR for each in self._state.fleet.engines}
        in_use = (each for each in self._counts if each in self._state.variants.engines)
        weights = {each: self._arrivals(each, now) for each in in_use}
        return {each: weight for each, weight in weights.items() if weight > LEAST}

    def _next_workers(self, count: int) -> list[WorkerRecord]:
        """Return the workers of this plan; in a large fleet, following plans look at the others."""
        workers = [
            each
            for each in self._state.fleet.workers.values()
            if not each.withdrawn and each.worker.keeps_sessions
        ]
        first = self._first_worker if self._first_worker < len(workers) else 0
        self._first_worker = first + count
        return workers[first : first + count]

    def _wishes(
        self, worker: WorkerRecord, weights: Mapping[EngineName, float], now: float
    ) -> Iterator[_Wish]:
        for engine in self._missing_engines(worker, weights):
            for estimate in self._missing(worker, engine, now):
                value = weights[engine] * self._saved_s(worker, estimate.session)
                yield _Wish(value, worker, estimate)

    def _missing_engines(
        self, worker: WorkerRecord, weights: Mapping[EngineName, float]
    ) -> list[EngineName]:
        """Return the engines without a session on some worker, the likeliest ones."""
        with_variants = self._state.variants.engines
        found = {each for each in worker.engines if each in with_variants and each in weights}
        if self._preloads_all and not worker.leases:
            loaded = {session.engine for session in worker.sessions}
            found |= {each for each in worker.engines - loaded if each not in with_variants}
        if len(found) <= _SESSIONS:
            return sorted(found)
        return heapq.nsmallest(_SESSIONS, found, key=lambda each: (-weights[each], each))

    def _missing(self, worker: WorkerRecord, engine: EngineName, now: float) -> Iterator[Estimate]:
        if engine in self._state.variants.engines:
            wanted = self._state.variants.wanted(engine, worker, now)
        else:
            fastest = self._state.estimator.estimate(engine, worker)
            mode = worker.power_mode
            if fastest is None or (mode and fastest.configuration.power_mode not in ("", mode)):
                return
            wanted = [fastest]
        yield from islice((each for each in wanted if self._is_missing(worker, each, now)), 1)

    def _is_missing(self, worker: WorkerRecord, estimate: Estimate, now: float) -> bool:
        session = estimate.session
        return session not in worker.sessions and self._state.loads.may_load(
            worker.id, session, now
        )

    def _arrivals(self, engine: EngineName, now: float) -> float:
        """Return the arrivals of an engine, those longer ago counting less."""
        count, at = self._counts.get(engine, (0.0, now))
        return count * math.exp2((at - now) / HALF_LIFE_S)

    def _saved_s(self, worker: WorkerRecord, session: Session) -> float:
        """Return the seconds of loading that using a session saves, per byte."""
        load_s = max(self._state.estimator.load_s(session, worker), LEAST_S)
        return load_s / max(self._state.sizes.of(worker, session), 1)

    # --- memory -------------------------------------------------------------------------

    def _free_bytes(self, worker: WorkerRecord, now: float) -> float:
        memory = self._memories[worker.index]
        if len(worker.sessions) >= memory.most_sessions or now < memory.full_until:
            return 0.0
        return self._state.sizes.free(worker)

    def _make_room(self, wish: _Wish, weights: Mapping[EngineName, float], now: float) -> None:
        """Drop the session of a worker that is worth least, if it is worth less than `wish`."""
        worker = wish.worker
        idle = [
            (weights.get(session.engine, 0.0) * self._saved_s(worker, session), session)
            for session in worker.sessions
            if session != wish.estimate.session and self._may_drop(worker, session, now)
        ]
        value, session = min(idle, default=(math.inf, wish.estimate.session))
        if BETTER * value < wish.value:
            if self._state.loads.may_drop_at(worker.id, session) <= now:
                self._state.loads.drop(worker.id, session, now)
                self._state.commands.append(Unload(worker.id, session))
            # The load follows once the session is dropped.
            self._plan_again(self._state.loads.may_drop_at(worker.id, session))

    def _may_drop(self, worker: WorkerRecord, session: Session, now: float) -> bool:
        """Return whether a session is not used, now or lately, nor to be kept loaded always."""
        used_at = self._memories[worker.index].used_at.get(session, -math.inf)
        if session in worker.worker.pinned or now < used_at + RECENT_S:
            return False
        if any(lease.session == session for lease in worker.all_leases()):
            return False
        if not session.configuration.variant:
            return True
        fastest = self._state.variants.fastest(session.engine, worker, now)
        return fastest is None or fastest.session != session


def _is_loading(worker: WorkerRecord) -> bool:
    return worker.head is not None and worker.head.assignment.setup_s > 0.0
