"""Changes of workers: which there are, what they can run, and what they have loaded.

Each change is followed by what rests on it: cached estimates, engines to probe, and the ranks of
waiting jobs. The core handles the work of a worker that leaves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.domain import Session
from synergai.scheduling.events import (
    ConfigurationsUnusable,
    EnginesChanged,
    ModeChanged,
    SessionDropped,
    SessionLoaded,
    WorkerDraining,
)
from synergai.scheduling.state.records import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from synergai.domain import EngineName, Variant
    from synergai.profiles.dictionary import ConfigurationDictionary
    from synergai.scheduling.events import Worker
    from synergai.scheduling.policy import View
    from synergai.scheduling.queue.wait_queue import WaitQueue
    from synergai.scheduling.rules.outliers import Outliers
    from synergai.scheduling.rules.probes import Probes
    from synergai.scheduling.state.estimator import Estimator
    from synergai.scheduling.state.fleet import Fleet
    from synergai.scheduling.state.loads import Loads
    from synergai.scheduling.state.records import WorkerRecord
    from synergai.scheduling.state.sizes import SessionSizes
    from synergai.scheduling.variants.choice import Variants

FULL_S: Final = 120.0
"""A worker that had no room for a preload counts as full so long, or until it drops one."""

_Variants: TypeAlias = "Mapping[EngineName, tuple[Variant, ...]]"

WorkerChange: TypeAlias = (
    WorkerDraining
    | EnginesChanged
    | ConfigurationsUnusable
    | SessionLoaded
    | SessionDropped
    | ModeChanged
)


class WorkerChanges:
    """Applies changes of workers.

    Args:
        fleet: the workers.
        estimator: knows what engines cost on them.
        dictionary: profiled engine speeds.
        probes: knows which of their engines are unprofiled.
        outliers: counts their reports as signs of progress.
        wait_queue: the waiting jobs, ranked by these costs.
        view: tells policies when more has become available to run on.
        variants: which engines have variants.
        loads: sessions that are being loaded.
        sizes: memory that sessions take.
    """

    def __init__(
        self,
        fleet: Fleet,
        estimator: Estimator,
        dictionary: ConfigurationDictionary,
        probes: Probes,
        outliers: Outliers,
        wait_queue: WaitQueue,
        view: View,
        variants: Variants,
        loads: Loads,
        sizes: SessionSizes,
    ) -> None:
        self._fleet = fleet
        self._estimator = estimator
        self._dictionary = dictionary
        self._probes = probes
        self._outliers = outliers
        self._wait_queue = wait_queue
        self._view = view
        self._variants = variants
        self._loads = loads
        self._sizes = sizes

    def add(self, worker: Worker, now: float) -> WorkerRecord:
        """Add a worker that has joined, and return its record."""
        record = self._fleet.add(worker, now)
        self._sizes.add_worker(worker)
        self._variants.fleet_changed()
        self._view.extended_at = now
        self._estimator.invalidate_worker(record)
        self._probes.update_worker(record)
        for engine in sorted(record.engines):
            self._wait_queue.rerank(engine)
        return record

    def apply(self, worker: WorkerRecord, change: WorkerChange, now: float) -> None:
        """Apply a change that a worker reports."""
        match change:
            case WorkerDraining():
                worker.draining = True
                self._fleet.update_availability(worker, now)
            case EnginesChanged(_, engines, variants, file_variants):
                before, files_before = worker.variants, worker.file_variants
                if worker.paused:
                    worker.paused = {
                        session: until
                        for session, until in worker.paused.items()
                        if session.engine in engines
                        and variants.get(session.engine) == worker.variants.get(session.engine)
                    }
                worker.unusable = {
                    each for each in worker.unusable if not _is_replaced(each, before, variants)
                }
                worker.variants, worker.file_variants = dict(variants), dict(file_variants)
                self.set_engines(worker, engines, now)
                changed = before.keys() | variants.keys() if before != variants else set()
                if files_before != file_variants:
                    changed |= files_before.keys() | file_variants.keys()
                for engine in sorted(worker.engines & changed):
                    self._wait_queue.rerank(engine)
            case ConfigurationsUnusable(_, engine, configurations):
                worker.unusable = {each for each in worker.unusable if each.engine != engine}
                worker.unusable |= {Session(engine, each) for each in configurations}
                self.update_configurations(worker, engine, now)
            case SessionLoaded(_, session, setup_s, size):
                self._outliers.heard(worker, now)
                self._sizes.record(worker, session, size)
                self.add_session(worker, session)
                row = self._dictionary.row(session.engine, worker.worker.worker_class)
                if entry := row.get(session.configuration):
                    self._estimator.observe_setup(worker, entry, setup_s)
            case SessionDropped(_, session, no_room, size):
                was_resident = session in worker.sessions
                worker.sessions.discard(session)
                worker.used_at.pop(session, None)
                if no_room and not was_resident:
                    self._sizes.record(worker, session, size)
                    if size <= self._sizes.free(worker):  # something else takes its memory
                        worker.full_until = now + FULL_S
                elif was_resident:
                    worker.full_until = -math.inf
                decided = (
                    self._loads.dropped(worker.id, session, now, for_memory=no_room)
                    and was_resident
                )
                if decided and (
                    self._loads.worker_is_loading(worker.id, now) or _is_loading(worker)
                ):
                    # It made room for another one.
                    worker.most_sessions = max(1, len(worker.sessions))
                if was_resident and session.configuration.variant and _is_needed(session, worker):
                    self._loads.begin(worker.id, session, math.inf, now)  # by the worker itself
                self._estimator.invalidate_engine(worker, session.engine)
                self._wait_queue.rerank(session.engine)
            case ModeChanged(_, mode, switch_s):
                self._outliers.heard(worker, now)
                self._set_mode(worker, mode, switch_s)

    def set_engines(self, worker: WorkerRecord, engines: Iterable[EngineName], now: float) -> None:
        """Set the engines that a worker can run."""
        before = set(worker.engines)
        self._estimator.invalidate_worker(worker)
        self._fleet.set_engines(worker, engines)
        self._estimator.invalidate_worker(worker)
        self._variants.fleet_changed()
        self._probes.update_worker(worker)
        if not worker.engines <= before:
            self._view.extended_at = now
        for engine in sorted(before ^ worker.engines):
            self._wait_queue.rerank(engine)

    def add_unusable(self, worker: WorkerRecord, session: Session, now: float) -> None:
        """Stop using a configuration in which the worker cannot run an engine."""
        worker.unusable.add(session)
        self.update_configurations(worker, session.engine, now)

    def update_configurations(self, worker: WorkerRecord, engine: EngineName, now: float) -> None:
        """Apply a change of the configurations in which a worker can run an engine that it has."""
        self.set_engines(worker, worker.engines, now)
        self._wait_queue.rerank(engine)

    def add_session(self, worker: WorkerRecord, session: Session) -> None:
        """Record that a session is loaded."""
        self._loads.loaded(worker.id, session)
        if session not in worker.sessions and worker.worker.keeps_sessions:
            worker.sessions.add(session)
            worker.most_sessions = max(worker.most_sessions, len(worker.sessions))
            self._estimator.invalidate_engine(worker, session.engine)
            self._wait_queue.rerank(session.engine)

    def _set_mode(self, worker: WorkerRecord, mode: str, switch_s: float) -> None:
        self._estimator.observe_switch(worker, switch_s)
        if not worker.leases:  # otherwise its assignments determine the final mode
            worker.power_mode = mode or None
        self._estimator.invalidate_worker(worker)
        for engine in sorted(worker.engines):
            self._wait_queue.rerank(engine)


def _is_replaced(session: Session, before: _Variants, after: _Variants) -> bool:
    """Return whether the variant of a session has another file now."""
    name = session.configuration.variant
    old = {each.digest for each in before.get(session.engine, ()) if each.name == name}
    new = {each.digest for each in after.get(session.engine, ()) if each.name == name}
    return bool(old and new) and old != new


def _is_needed(session: Session, worker: WorkerRecord) -> bool:
    """Return whether the worker has to load a session for any of its assignments.

    One that runs goes on with the session that it has, although others get a new one.
    """
    return any(
        lease.session == session and lease.phase is not Phase.RUNNING
        for lease in worker.all_leases()
    )


def _is_loading(worker: WorkerRecord) -> bool:
    """Return whether the worker loads what its first assignment needs."""
    return worker.head is not None and worker.head.assignment.setup_s > 0.0
