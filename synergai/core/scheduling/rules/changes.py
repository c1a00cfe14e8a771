"""Changes of workers and profiles.

Workers join, leave, and change what they can run and have loaded; profiles are measured by jobs, or
added and removed by others. Each change is followed by what rests on it: cached estimates, observed
paces, engines to probe, and the ranks of waiting jobs.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from synergai.core.scheduling.events import (
    ConfigurationsUnusable,
    EnginesChanged,
    Learned,
    ModeChanged,
    ProfilesAdded,
    ProfilesRemoved,
    SessionDropped,
    SessionLoaded,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from synergai.core.scheduling.state.estimate import SHORTEST_S
from synergai.core.scheduling.state.jobs import Lease, LeasePhase
from synergai.domain import EngineName, Session, Variant, WorkerClass
from synergai.profiles.dictionary import OBSERVED, PREDICTED, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.core.scheduling.rules.active_jobs import ActiveJobs
    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.rules.leases import Leases
    from synergai.core.scheduling.rules.probes import Probes
    from synergai.core.scheduling.rules.residency import Residency
    from synergai.core.scheduling.state.workers import WorkerRecord

_Variants: TypeAlias = "Mapping[EngineName, tuple[Variant, ...]]"


class ProfileChanges:
    """Applies changes of profiles."""

    def __init__(self, state: State, probes: Probes, leases: Leases) -> None:
        self._state = state
        self._probes = probes
        self._leases = leases

    def learn(self, lease: Lease) -> None:
        """Store a profile measured in service if it is the first or better than the known one."""
        worker = self._state.fleet.workers[lease.assignment.worker_id]
        if lease.assignment.probe:
            entry = self._measured(lease, worker.worker.worker_class)
            self._state.extended_at = self._state.now
        else:
            entry = self._refined(lease) or self._state.estimator.settled_profile(lease, worker)
        if entry is None or self._has_better(entry):
            return
        self._reset_paces(entry)
        self._state.dictionary.put(entry)
        self._refresh([entry.engine])
        self._state.commands.append(Learned(entry))

    def _measured(self, lease: Lease, worker_class: WorkerClass) -> ProfileEntry | None:
        """Return the profile measured by a finished probe; None if its duration is unknown."""
        started = lease.first_query_at if lease.first_query_at is not None else lease.head_at
        wall_s = self._state.now - started if started is not None else 0.0
        seconds = lease.compute_s or wall_s
        if seconds < SHORTEST_S:
            return None
        return ProfileEntry(
            engine=lease.assignment.engine,
            worker_class=worker_class,
            configuration=lease.assignment.configuration,
            qps=lease.done / seconds,
            model_load_s=lease.setup_s,
            queries=lease.done,
            label=OBSERVED,
        )

    def _refined(self, lease: Lease) -> ProfileEntry | None:
        """Return a better profile if the lease's own rests on fewer queries in service.

        A probe is short and includes an engine's first queries, so it gives only the order of
        magnitude. A prediction is refined by as many queries as a probe has. Entries measured by
        the profiler are never replaced. Of queries that came with tensors, the time in the engine
        counts, which is not that of each one if they ran in batches.
        """
        if lease.estimate is None or lease.job.is_request or lease.first_query_at is None:
            return None
        entry = lease.estimate.entry
        seconds = self._state.now - lease.first_query_at
        if lease.brings_inputs:
            seconds = lease.compute_s if lease.assignment.batch_times is None else 0.0
        if entry.label not in {OBSERVED, PREDICTED} or seconds <= 0:
            return None
        known = (
            self._state.settings.probe_queries - 1 if entry.label == PREDICTED else entry.queries
        )
        if lease.done <= known:
            return None
        return replace(
            entry, qps=lease.done / seconds, queries=lease.done, label=OBSERVED, error=0.0
        )

    def add(self, event: ProfilesAdded) -> None:
        """Put entries into the dictionary; paces relative to a replaced one are void."""
        entries = event.entries
        for entry in entries:
            known = self._state.dictionary.row(entry.engine, entry.worker_class).get(
                entry.configuration
            )
            if known is not None and known.qps != entry.qps:
                self._reset_paces(entry)
            self._state.dictionary.put(entry)
        self._refresh(sorted({entry.engine for entry in entries}))

    def remove(self, event: ProfilesRemoved) -> None:
        """Remove entries from the dictionary; an engine without any is measured again."""
        entries = event.entries
        for entry in entries:
            self._reset_paces(entry)
            self._state.dictionary.remove(entry)
        self._refresh(sorted({entry.engine for entry in entries}))
        for worker in self._state.fleet.workers.values():
            self._probes.update_worker(worker)

    def _has_better(self, entry: ProfileEntry) -> bool:
        """Return whether the profiler measured what was only observed, while it was observed."""
        row = self._state.dictionary.row(entry.engine, entry.worker_class)
        known = row.get(entry.configuration)
        return known is not None and known.label not in {entry.label, PREDICTED}

    def _reset_paces(self, entry: ProfileEntry) -> None:
        """Void the paces that were observed on the class of an entry, which is replaced."""
        workers = self._state.fleet.serving(entry.engine)
        self._state.estimator.reset_paces(
            entry.engine,
            [w for w in workers if w.worker.worker_class == entry.worker_class],
            self._leases.paced_jobs(entry.engine),
        )
        self._state.fleet.void_absent_paces(entry.engine)

    def _refresh(self, engines: Sequence[EngineName]) -> None:
        """Compute what rests on the profiles of `engines` again."""
        for engine in engines:
            for worker in self._state.fleet.serving(engine):
                self._state.estimator.invalidate_engine(worker, engine)
        self._probes.refresh()
        for engine in engines:
            self._state.waiting.rerank(engine)


class WorkerChanges:
    """Applies changes of workers. Its handlers take an event and the worker's record."""

    def __init__(
        self,
        state: State,
        jobs: ActiveJobs,
        probes: Probes,
        residency: Residency,
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._probes = probes
        self._residency = residency

    # --- joining and leaving ------------------------------------------------------------

    def add(self, event: WorkerJoined) -> None:
        """Add a worker; one of the same id has restarted."""
        state = self._state
        if existing := state.fleet.workers.get(event.worker.id):
            self._remove(existing)
        worker = state.fleet.add(event.worker, state.now)
        state.sizes.add_worker(event.worker)
        state.variants.fleet_changed()
        state.extended_at = state.now
        state.estimator.invalidate_worker(worker)
        self._probes.update_worker(worker)
        self._rerank(worker.engines)

    def remove(self, _event: WorkerLeft, worker: WorkerRecord) -> None:
        """Remove a worker; its queries run elsewhere."""
        self._remove(worker)

    def _remove(self, worker: WorkerRecord) -> None:
        state = self._state
        state.fleet.remove(worker)
        state.sizes.remove_worker(worker.worker)
        state.loads.remove_worker(worker.id)
        state.variants.fleet_changed()
        state.estimator.invalidate_worker(worker)
        for forget in state.forget_worker:
            forget(worker)
        for lease in worker.all_leases():
            self._jobs.release(lease, "left")
        self._rerank(worker.engines)

    def drain(self, _event: WorkerDraining, worker: WorkerRecord) -> None:
        """Give a worker no further assignments."""
        worker.draining = True
        self._state.fleet.update_availability(worker, self._state.now)

    # --- engines and configurations -----------------------------------------------------

    def change_engines(self, event: EnginesChanged, worker: WorkerRecord) -> None:
        """Replace the engines of a worker and their variants."""
        before, variants = worker.variants, event.variants
        if worker.paused:
            worker.paused = {
                session: until
                for session, until in worker.paused.items()
                if session.engine in event.engines
                and variants.get(session.engine) == before.get(session.engine)
            }
        for engine in worker.ejected_engines.keys() - event.engines:
            del worker.ejected_engines[engine]
        worker.unusable = {
            each for each in worker.unusable if not _is_replaced(each, before, variants)
        }
        worker.variants = dict(variants)
        worker.query_s = dict(event.query_s)
        self.set_engines(worker, event.engines)
        changed = before.keys() | variants.keys() if before != variants else set()
        self._rerank(worker.engines & changed)

    def change_unusable(self, event: ConfigurationsUnusable, worker: WorkerRecord) -> None:
        """Replace the configurations in which a worker cannot run an engine."""
        engine = event.engine
        worker.unusable = {each for each in worker.unusable if each.engine != engine}
        worker.unusable |= {Session(engine, each) for each in event.configurations}
        self.update_configurations(worker, engine)

    def set_engines(self, worker: WorkerRecord, engines: Iterable[EngineName]) -> None:
        """Set the engines that a worker can run."""
        state = self._state
        before = set(worker.engines)
        state.estimator.invalidate_worker(worker)
        state.fleet.set_engines(worker, engines)
        state.estimator.invalidate_worker(worker)
        state.variants.fleet_changed()
        self._probes.update_worker(worker)
        if not worker.engines <= before:
            state.extended_at = state.now
        self._rerank(before ^ worker.engines)

    def update_configurations(self, worker: WorkerRecord, engine: EngineName) -> None:
        """Apply a change of the configurations in which a worker can run an engine that it has."""
        self.set_engines(worker, worker.engines)
        self._state.waiting.rerank(engine)

    def pause(self, worker: WorkerRecord, session: Session, until: float) -> None:
        """Do not use a session of a worker until an instant."""
        worker.paused[session] = until
        self._state.call_at(until, partial(self._resume, worker, session, until))
        self.update_configurations(worker, session.engine)

    def _resume(self, worker: WorkerRecord, session: Session, until: float) -> None:
        in_fleet = self._state.fleet.workers.get(worker.id) is worker
        if in_fleet and worker.paused.get(session) == until:
            del worker.paused[session]
            self.update_configurations(worker, session.engine)

    def eject_engine(self, worker: WorkerRecord, engine: EngineName, until: float) -> None:
        """Do not use an engine of a worker until an instant, as if the worker lacked it."""
        worker.ejected_engines[engine] = until
        self._state.call_at(until, partial(self._readmit_engine, worker, engine, until))
        self.update_configurations(worker, engine)

    def _readmit_engine(self, worker: WorkerRecord, engine: EngineName, until: float) -> None:
        in_fleet = self._state.fleet.workers.get(worker.id) is worker
        if in_fleet and worker.ejected_engines.get(engine) == until:
            del worker.ejected_engines[engine]
            self.set_engines(worker, worker.engines | {engine})
            self._state.waiting.rerank(engine)

    def change_mode(self, event: ModeChanged, worker: WorkerRecord) -> None:
        """Record the power mode of a worker."""
        worker.hear(self._state.now)
        self._state.estimator.observe_switch(worker, event.switch_s)
        if not worker.leases:  # otherwise its assignments determine the final mode
            worker.power_mode = event.mode or None
        self._state.estimator.invalidate_worker(worker)
        self._rerank(worker.engines)

    # --- sessions -----------------------------------------------------------------------

    def session_loaded(self, event: SessionLoaded, worker: WorkerRecord) -> None:
        """Record that a session is loaded, and how long that took."""
        state, session = self._state, event.session
        worker.hear(self._state.now)
        state.sizes.record(worker, session, event.bytes)
        self.add_session(worker, session)
        row = state.dictionary.row(session.engine, worker.worker.worker_class)
        if entry := row.get(session.configuration):
            state.estimator.observe_setup(worker, entry, event.setup_s)

    def add_session(self, worker: WorkerRecord, session: Session) -> None:
        """Record that a session is loaded."""
        state = self._state
        state.loads.loaded(worker.id, session)
        if session not in worker.sessions and worker.worker.keeps_sessions:
            worker.sessions.add(session)
            self._residency.loaded(worker)
            state.estimator.invalidate_engine(worker, session.engine)
            state.waiting.rerank(session.engine)

    def session_dropped(self, event: SessionDropped, worker: WorkerRecord) -> None:
        """Record that a session is not loaded."""
        state, session = self._state, event.session
        was_resident = session in worker.sessions
        worker.sessions.discard(session)
        self._residency.dropped(event, worker, was_resident=was_resident)
        if was_resident and session.configuration.variant and _is_needed(session, worker):
            state.loads.begin(worker.id, session, math.inf, state.now)  # by the worker itself
        state.estimator.invalidate_engine(worker, session.engine)
        state.waiting.rerank(session.engine)

    def _rerank(self, engines: Iterable[EngineName]) -> None:
        for engine in sorted(engines):
            self._state.waiting.rerank(engine)


def _is_replaced(session: Session, before: _Variants, after: _Variants) -> bool:
    """Return whether the variant of a session has another file now."""
    name = session.configuration.variant
    old = {each.digest for each in before.get(session.engine, ()) if each.name == name}
    new = {each.digest for each in after.get(session.engine, ()) if each.name == name}
    return bool(old and new) and old != new


def _is_needed(session: Session, worker: WorkerRecord) -> bool:
    """Return whether the worker has to load a session for any of its assignments.

    One that runs keeps its session, although others get a new one.
    """
    return any(
        lease.session == session and lease.phase is not LeasePhase.RUNNING
        for lease in worker.all_leases()
    )
