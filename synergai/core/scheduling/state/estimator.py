"""Execution time estimates: profiled times corrected by observation.

``T_estimated = T_pre + q / QPS`` (thesis, Eq. 6.2), with two refinements for resident sessions
and drifting machines: only the outstanding part of T_pre is charged, and the profiled QPS is
scaled by the worker's observed pace. A predicted entry counts with one standard error less, so that
a measured one is not given up for a prediction that is no better for sure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergai.core.scheduling.state.estimate import (
    BRIEF_S,
    Estimate,
    Limit,
    Observation,
    RangeTransfers,
    TransferTime,
    batches_for_jobs,
    pareto_front,
)
from synergai.domain import Configuration, EngineName, Session, largest_configuration
from synergai.profiles.dictionary import OBSERVED, ConfigurationDictionary, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.core.scheduling.state.jobs import JobRecord, Lease
    from synergai.core.scheduling.state.loads import Loads
    from synergai.core.scheduling.state.workers import WorkerRecord

_MAX_LIMITS: Final = 64
"""Floors and pinned variants of an engine whose fastest workers are remembered."""
_AS_FAST: Final = 0.9
"""Share of the QPS at which a brief engine is about as fast with fewer threads."""
_TYPICAL_STEP: Final = 1.2
"""Factor by which a single query moves the median of paces, up or down."""


class Estimator:
    """Cached cost estimates per engine and worker, updated by observations."""

    def __init__(
        self, dictionary: ConfigurationDictionary, loads: Loads, settings: SchedulingSettings
    ) -> None:
        self.now = -math.inf
        self._dictionary = dictionary
        self._loads = loads
        self._settings = settings
        self._fastest: dict[EngineName, list[Estimate]] = {}
        # The same for jobs that may not use all variants.
        self._fastest_limited: dict[EngineName, dict[Limit, list[Estimate]]] = {}

    # --- estimates ----------------------------------------------------------------------

    def estimate(self, engine: EngineName, worker: WorkerRecord) -> Estimate | None:
        """Return the cost in the fastest configuration (thesis, c*); None if not profiled."""
        found = self.estimates(engine, worker)
        return found[0] if found else None

    def estimates(self, engine: EngineName, worker: WorkerRecord) -> tuple[Estimate, ...]:
        """Return the cost of `engine` on `worker` per profiled configuration, fastest first."""
        try:
            return worker.estimates[engine]
        except KeyError:
            found = worker.estimates[engine] = self._compute(engine, worker)
            return found

    def current(self, engine: EngineName, worker: WorkerRecord) -> tuple[Estimate, ...]:
        """Return `estimates` without keeping them: what decisions rest on does not change."""
        known = worker.estimates.get(engine)
        return self._compute(engine, worker) if known is None else known

    def for_job(self, job: JobRecord, worker: WorkerRecord) -> tuple[Estimate, ...]:
        """Return the cost of a job's engine on `worker`, in variants that the job may use now.

        While a variant of the engine is being loaded, these are the ones that the worker has
        loaded.
        """
        engine = job.job.engine
        if job.limit is None and job.job.queries == 1:
            found = self.estimates(engine, worker)
        else:
            found = self.allowed(job, worker)
        if engine in self._loads.engines and found and self.waits_for_load(engine, worker):
            return tuple([each for each in found if each.session in worker.sessions])
        return found

    def may_use(self, session: Session, worker: WorkerRecord) -> bool:
        """Return whether an assignment may use `session` now: it is loaded, or may be."""
        return (
            not session.configuration.variant
            or session in worker.sessions
            or not worker.worker.keeps_sessions
            or self._loads.may_begin(session.engine, worker.id, self.now)
        )

    def allowed(self, job: JobRecord, worker: WorkerRecord) -> tuple[Estimate, ...]:
        """Return the cost of a job's engine in variants that the job may use, its fastest first."""
        found = self.estimates(job.job.engine, worker)
        limit, queries = job.limit, job.job.queries
        if queries > 1 and any(each.job_batches for each in found):
            # Another configuration may be the fastest in batches.
            found = tuple(sorted(found, key=lambda e: e.per_query_s * e.batch_gain(queries)))
        return found if limit is None else tuple(filter(limit.allows, found))

    def to_measure(self, job: JobRecord, worker: WorkerRecord) -> Configuration | None:
        """Return the configuration in which a job's queries would measure its engine on `worker`.

        The largest one, or the one with fewest threads for an engine whose queries are brief; with
        variants, the first that the job may use and that is not profiled, by the accuracy that the
        engine's folder declares. None if there is none, or if it would have to be loaded while
        another one is being loaded.
        """
        engine, limit = job.job.engine, job.limit
        usable = worker.configurations(engine)
        variants = worker.variants.get(engine)
        if not variants:
            if not usable or not (limit is None or limit.admits("", 0.0)):
                return None
            largest = largest_configuration(usable)
            if not 0.0 < worker.query_s.get(engine, 0.0) <= BRIEF_S:
                return largest
            return min(_alike(usable, largest), key=_threads)
        profiled = {each.configuration.variant for each in self.estimates(engine, worker)}
        for variant in variants:
            if variant.name in profiled:
                continue
            if limit is None or limit.admits(variant.name, variant.accuracy):
                found = [each for each in usable if each.variant == variant.name]
                if found:
                    largest = largest_configuration(found)
                    return largest if self.may_use(Session(engine, largest), worker) else None
        return None

    def waits_for_load(self, engine: EngineName, worker: WorkerRecord) -> bool:
        """Return whether a worker may load no variant, as one is being loaded."""
        return (
            engine in worker.variants
            and worker.worker.keeps_sessions
            and not self._loads.may_begin(engine, worker.id, self.now)
        )

    def fastest_s(self, job: JobRecord, serving: Sequence[WorkerRecord]) -> float:
        """Return the least time for the job's pending queries on any of `serving`; 0 if unknown."""
        engine = job.job.engine
        if job.limit is not None:
            fastest = self._fastest_within(job.limit, job, serving)
        elif (known := self._fastest.get(engine)) is not None:
            fastest = known
        else:
            found = [e for worker in serving if (e := self.estimate(engine, worker)) is not None]
            fastest = self._fastest[engine] = pareto_front(found)
        queries, with_tensors = job.pending.total, job.job.with_tensors
        if len(fastest) == 1:
            return fastest[0].seconds(queries, with_tensors=with_tensors)
        return min((e.seconds(queries, with_tensors=with_tensors) for e in fastest), default=0.0)

    def _fastest_within(
        self, limit: Limit, job: JobRecord, serving: Sequence[WorkerRecord]
    ) -> list[Estimate]:
        known = self._fastest_limited.setdefault(job.job.engine, {})
        fastest = known.get(limit)
        if fastest is None:
            if len(known) >= _MAX_LIMITS:
                known.clear()
            found = [e for worker in serving for e in self.allowed(job, worker)[:1]]
            fastest = known[limit] = pareto_front(found)
        return fastest

    def _compute(self, engine: EngineName, worker: WorkerRecord) -> tuple[Estimate, ...]:
        row = self._dictionary.row(engine, worker.worker.worker_class)
        entries = [row[c] for c in worker.configurations(engine) if c in row]
        entries.sort(key=lambda entry: -entry.planned_qps)
        if entries and entries[0].planned_qps * BRIEF_S >= 1.0:
            lean = _leanest(entries)
            entries.remove(lean)
            entries.insert(0, lean)
        pace, typical, transfer_s, input_s = worker.observed.times(engine)
        declared = {each.name: each.accuracy for each in worker.variants.get(engine, ())}
        samples = self._dictionary.samples(engine, worker.worker.worker_class)
        found: list[Estimate] = []
        for entry in entries:
            planned_qps = entry.planned_qps
            session = Session(engine, entry.configuration)
            variant = entry.configuration.variant
            measured = entry.is_accurate_on(samples)
            found.append(
                Estimate(
                    entry.configuration,
                    self._setup_s(entry, session, worker),
                    pace / planned_qps,
                    typical / planned_qps,
                    transfer_s,
                    input_s,
                    entry.watts / entry.qps if entry.watts > 0 else math.inf,
                    entry,
                    planned_qps,
                    session,
                    entry.accuracy if measured else declared.get(variant, 0.0),
                    batches_for_jobs(entry),
                    entry.label == OBSERVED and entry.queries < self._settings.probe_queries,
                )
            )
        return tuple(found)

    def _setup_s(self, entry: ProfileEntry, session: Session, worker: WorkerRecord) -> float:
        """Return load time if the session is cold, plus switch time if the power mode changes."""
        seconds = 0.0
        mode = entry.configuration.power_mode
        if mode and worker.power_mode is not None and worker.power_mode != mode:
            seen_s = worker.observed.switch_s
            seconds += self._settings.mode_switch_s if seen_s is None else seen_s
        if not self._resident(session, worker):
            started = _shares_host(session, worker)
            pace = worker.observed.setup.get((entry.engine, started), 1.0)
            seconds += _load_s(entry, started=started) * pace
        return seconds

    def load_s(self, session: Session, worker: WorkerRecord) -> float:
        """Return the profiled time to load a session; 0 if it is not profiled."""
        row = self._dictionary.row(session.engine, worker.worker.worker_class)
        entry = row.get(session.configuration)
        return 0.0 if entry is None else _load_s(entry, started=_shares_host(session, worker))

    @staticmethod
    def _resident(session: Session, worker: WorkerRecord) -> bool:
        """Return whether the session will be resident after the worker's current assignments."""
        if not worker.worker.keeps_sessions:
            return False
        return session in worker.sessions or any(
            lease.assignment.engine == session.engine
            and lease.assignment.configuration == session.configuration
            for lease in worker.leases.values()
        )

    # --- observations -------------------------------------------------------------------

    def observe_queries(self, lease: Lease, worker: WorkerRecord, observation: Observation) -> None:
        """Update pace and transfer time from a lease's finished queries.

        Call in the order in which the worker runs its leases. An observation weighs as much as its
        queries were expected to take: if it weighed as much as they did take, slow ones would
        weigh more than fast ones, and the pace would not be the mean. One assignment moves the
        pace by at most `pace_trust`, however long it runs. A profile of a single request may be
        that of a cold engine: the next one replaces it, and then the mean of all does. A lease
        whose profile was replaced says nothing about the pace relative to the new one.
        """
        estimate, count = lease.estimate, lease.assignment.count
        if estimate is None:
            return
        engine_s, transfer_s = observation.engine_s, observation.transfer_s
        entry = estimate.entry
        engine, observed = entry.engine, worker.observed
        if lease.done > 0 and engine_s > 0 and self.is_current(entry):
            gain = estimate.batch_gain(lease.job.job.queries)
            profiled_s = gain * lease.done / entry.qps
            seen = engine_s / profiled_s
            if engine in observed.guessed:
                observed.guessed.remove(engine)
                lease.prior_pace = seen
            elif lease.prior_pace is None:
                lease.prior_pace = observed.pace.get(engine, 1.0)
            expected_s = profiled_s * lease.prior_pace
            weight = 1.0 - math.exp2(-expected_s / self._settings.pace_half_life_s)
            weight = min(weight, self._settings.pace_trust)
            if estimate.is_rough and count == 1:
                weight = max(weight, 1.0 / (1 + observed.requests[engine]))
                observed.requests[engine] += 1
            observed.pace[engine] = _blend(lease.prior_pace, seen, weight)
            if count == 1:
                typical = observed.typical.get(engine, 1.0)
                step = _TYPICAL_STEP if seen > typical else 1.0 / _TYPICAL_STEP
                observed.typical[engine] = typical * step
        if transfer_s is not None:
            known = observed.transfers.get(engine)
            if known is None:
                known = observed.transfers[engine] = TransferTime()
            if count == 1:
                known.observe(max(0.0, transfer_s))
            else:
                if lease.transfers is None:
                    lease.transfers = RangeTransfers(known.of_inputs)
                known.of_inputs = lease.transfers.observe(
                    max(0.0, transfer_s), observation.transfers
                )
        self._refresh(worker, engine)

    def settled_profile(self, lease: Lease, worker: WorkerRecord) -> ProfileEntry | None:
        """Return the profile of enough requests in place of that of a few; None if not due."""
        estimate = lease.estimate
        if estimate is None or not estimate.is_rough or not self.is_current(estimate.entry):
            return None
        entry = estimate.entry
        requests = worker.observed.requests[entry.engine]
        if requests < self._settings.probe_queries:
            return None
        return replace(entry, qps=entry.qps / worker.observed.pace[entry.engine], queries=requests)

    def is_current(self, entry: ProfileEntry) -> bool:
        """Return whether the dictionary has the QPS of `entry`, to which a pace is relative."""
        row = self._dictionary.rows.get((entry.engine, entry.worker_class))
        known = None if row is None else row.get(entry.configuration)
        return known is entry or (known is not None and known.qps == entry.qps)

    def reset_paces(
        self,
        engine: EngineName,
        workers: Collection[WorkerRecord],
        jobs: Iterable[JobRecord],
    ) -> None:
        """Reset the observed paces of `engine` and of its `jobs`, as its profile is replaced."""
        for worker in workers:
            worker.observed.void_pace(engine)
            for lease in worker.all_leases():
                if lease.assignment.engine == engine:
                    lease.prior_pace = None
            self.invalidate_engine(worker, engine)
        for job in jobs:
            if job.paces:
                for worker in workers:
                    job.paces.pop(worker.id, None)

    def guess(
        self,
        engine: EngineName,
        worker: WorkerRecord,
        query_s: float,
        jobs: Iterable[JobRecord],
    ) -> None:
        """Drop what was observed, and expect this time per query until the next one ends."""
        self.reset_paces(engine, [worker], jobs)
        entry = self.estimates(engine, worker)[0].entry
        worker.observed.pace[engine] = query_s * entry.planned_qps
        worker.observed.guessed.add(engine)
        self._refresh(worker, engine)

    def observe_setup(self, worker: WorkerRecord, entry: ProfileEntry, seconds: float) -> None:
        """Update the setup time of an engine; new and old observations weigh the same."""
        started = _shares_host(Session(entry.engine, entry.configuration), worker)
        profiled_s = _load_s(entry, started=started)
        if profiled_s <= 0 or seconds <= 0:
            return
        key, setup = (entry.engine, started), worker.observed.setup
        setup[key] = _blend(setup.get(key, 1.0), seconds / profiled_s, 0.5)
        self.invalidate_engine(worker, entry.engine)

    def observe_switch(self, worker: WorkerRecord, seconds: float) -> None:
        """Update a worker's switch time; the first observation replaces the configured default."""
        if seconds > 0:
            believed = worker.observed.switch_s
            worker.observed.switch_s = (
                seconds if believed is None else _blend(believed, seconds, 0.5)
            )

    def invalidate_engine(self, worker: WorkerRecord, engine: EngineName) -> None:
        """Drop cached estimates after `engine` was loaded or unloaded, or its profile changed."""
        before = worker.estimates.pop(engine, None)
        worker.fronts.pop(engine, None)
        self._invalidate_fastest(worker, engine, before)

    def _refresh(self, worker: WorkerRecord, engine: EngineName) -> None:
        """Update cached estimates after a change of pace or transfer time only.

        Happens with every report; recomputing from the profile would cost more.
        """
        before = worker.estimates.get(engine)
        if before is not None:
            seen = worker.observed.times(engine)
            if engine in worker.variants and before and before[0].is_near(*seen):
                return  # there is an estimate for each variant, and most reports change little
            worker.estimates[engine] = tuple([e.with_pace(*seen) for e in before])
        self._invalidate_fastest(worker, engine, before)

    def _invalidate_fastest(
        self, worker: WorkerRecord, engine: EngineName, before: tuple[Estimate, ...] | None
    ) -> None:
        """Drop the cached Pareto front if the worker's change may affect it."""
        if self._fastest_limited:
            self._fastest_limited.pop(engine, None)
        fastest = self._fastest.get(engine)
        if fastest is None:
            return
        # In a large fleet few workers are on the front; the others may drift freely.
        for one in fastest:
            if before and one is before[0]:
                del self._fastest[engine]
                return
        now = self.estimate(engine, worker) if engine in worker.engines else None
        if now is not None and not any(one.dominates(now) for one in fastest):
            del self._fastest[engine]

    def invalidate_worker(self, worker: WorkerRecord) -> None:
        """Drop cached estimates after the worker joined, left, or changed its mode or engines."""
        worker.estimates.clear()
        worker.fronts.clear()
        for engine in worker.engines:
            self._fastest.pop(engine, None)
            self._fastest_limited.pop(engine, None)


def _alike(configurations: Iterable[Configuration], one: Configuration) -> list[Configuration]:
    """Return those that differ from `one` by no more than the number of threads."""
    return [each for each in configurations if replace(each, threads=one.threads) == one]


def _threads(configuration: Configuration) -> float:
    return configuration.threads or math.inf


def _leanest(entries: Sequence[ProfileEntry]) -> ProfileEntry:
    """Return the entry with fewest threads that is about as fast as the first, which is fastest."""
    best = entries[0]
    alike = _alike([each.configuration for each in entries], best.configuration)
    as_fast = [
        each
        for each in entries
        if each.configuration in alike and each.planned_qps >= _AS_FAST * best.planned_qps
    ]
    return min(as_fast, key=lambda each: _threads(each.configuration))


def _load_s(entry: ProfileEntry, *, started: bool) -> float:
    """Return the profiled time of a load; variants share a host, and the samples in it."""
    return entry.model_load_s if started else entry.t_pre_s


def _shares_host(session: Session, worker: WorkerRecord) -> bool:
    if not session.configuration.variant:
        return False
    host = session.configuration.base
    return any(
        each.engine == session.engine and each.configuration.base == host and each != session
        for each in worker.sessions
    )


def _blend(believed: float, seen: float, weight: float) -> float:
    return (1.0 - weight) * believed + weight * seen
