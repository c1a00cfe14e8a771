"""Probes of engines without a profile, and second tries of those that look slow.

A probe measures an engine with a few real queries of a job. A waiting job is probed with as it is.
Under a policy that moves running work, a running job is stopped once for each worker that could
help it but has no profile of its engine: the job's next queries measure the engine there, and the
policy then splits the rest.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.core.scheduling.state.jobs import JobRecord, Lease, LeasePhase
from synergai.profiles.dictionary import OBSERVED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.core.scheduling.events import Assignment
    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.rules.leases import Leases
    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import AssignmentId, EngineName, WorkerClass, WorkerId

WORTH_S: Final = 2.0
"""A job that the profiled workers complete sooner is not split for a probe."""
SLOWER: Final = 10.0
"""Nor is one that would wait for a probe on a worker that is this many times slower than they are,
and takes twice as long to load the engine."""
_TRIED: Final = 64
"""Waiting jobs among which one is searched that may measure its engine."""
_SEARCHED: Final = 64
"""Workers that are searched for a running job with which to probe another worker."""


class _Missing(NamedTuple):
    """Engines of a worker without a profile there, and those with profiled variants and others."""

    worker: WorkerRecord
    engines: frozenset[EngineName]
    partly: frozenset[EngineName]


class Probes:
    """Selects what to probe where; at most one probe per engine and worker class is in flight.

    Attributes:
        missing: what workers lack profiles of; without any, there is nothing to ask.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        state.forget_worker.append(self._forget_worker)
        self._queries = state.settings.probe_queries
        self.missing: dict[WorkerId, _Missing] = {}
        # Workers that lack profiles of an engine.
        self._counts: Counter[EngineName] = Counter()
        self._in_flight: dict[AssignmentId, tuple[EngineName, WorkerClass]] = {}
        self._changed: set[WorkerId] = set()

    def are_needed(self) -> bool:
        """Return whether a queued job's engine is unprofiled on some worker, or a variant of it."""
        waited_for = self._state.queue.engines()
        return not self._counts.keys().isdisjoint(waited_for)

    def unprofiled(self, worker: WorkerRecord) -> frozenset[EngineName]:
        """Return the worker's engines that are not profiled on its class."""
        missing = self.missing.get(worker.id)
        return frozenset() if missing is None else missing.engines

    def update_worker(self, worker: WorkerRecord) -> None:
        """Recompute the unprofiled engines of a worker that joined or changed its engines."""
        self._forget_worker(worker)
        estimates = self._state.estimator.estimates
        unprofiled = frozenset(e for e in worker.engines if not estimates(e, worker))
        partly = frozenset(e for e in worker.variants if self._is_partly_profiled(e, worker))
        if unprofiled or partly:
            self.missing[worker.id] = _Missing(worker, unprofiled, partly)
            self._counts.update((*unprofiled, *partly))
        if unprofiled:
            self._changed.add(worker.id)

    def _is_partly_profiled(self, engine: EngineName, worker: WorkerRecord) -> bool:
        """Return whether some variants of an engine have a profile on a worker, and others not."""
        profiled = {
            e.configuration.variant for e in self._state.estimator.estimates(engine, worker)
        }
        known = {each.variant for each in worker.configurations(engine)}
        return engine in worker.engines and bool(profiled) and not known <= profiled

    def _forget_worker(self, worker: WorkerRecord) -> None:
        self._changed.discard(worker.id)
        missing = self.missing.pop(worker.id, None)
        for engine in () if missing is None else (*missing.engines, *missing.partly):
            self._counts[engine] -= 1
            if not self._counts[engine]:
                del self._counts[engine]

    def refresh(self) -> None:
        """Recompute the unprofiled engines of all workers after a profile change."""
        for missing in list(self.missing.values()):
            self.update_worker(missing.worker)

    def is_in_flight(self, engine: EngineName, worker_class: WorkerClass) -> bool:
        """Return whether the engine is being probed on the class."""
        return (engine, worker_class) in self._in_flight.values()

    def started(self, assignment: Assignment, worker_class: WorkerClass) -> None:
        """Record that a probe is in flight."""
        self._in_flight[assignment.id] = (assignment.engine, worker_class)

    def finished(self, assignment_id: AssignmentId) -> None:
        """Record that a probe has ended."""
        del self._in_flight[assignment_id]

    def for_unprofiled_engines(self) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        """Yield probes of engines without any profile, whose jobs the policy cannot place."""
        estimates = self._state.estimator.estimates
        profiled: dict[EngineName, bool] = {}
        for worker, engine in self._missing_pairs():
            if engine not in profiled:
                profiled[engine] = any(estimates(engine, o) for o in self._state.serving(engine))
            if not profiled[engine]:
                yield from self._candidates(worker, engine)
        yield from self._for_unprofiled_variants()

    def _for_unprofiled_variants(self) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        """Yield probes of variants without a profile, with jobs that may use no other."""
        waited_for = self._state.queue.engines()
        for worker in self._state.available():
            if (missing := self.missing.get(worker.id)) is None:
                continue
            for engine in sorted(missing.partly & waited_for):
                if self.is_in_flight(engine, worker.worker.worker_class):
                    continue
                for job in islice(self._state.queue.in_order({engine}), _TRIED):
                    if job.limit is None or self._state.estimator.to_measure(job, worker) is None:
                        continue
                    if any(
                        self._state.estimator.allowed(job, one)
                        for one in self._state.serving(engine)
                    ):
                        continue
                    if math.isfinite(worker.free_at(self._state.now)):
                        yield job, worker
                        break

    def for_unplannable_workers(self) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        """Yield probes with parts of jobs, for idle workers that no policy could give work to.

        Afterwards the policy would assign the whole job to the profiled workers.
        """
        waited_for = self._state.queue.engines()
        for worker, engine in self._missing_pairs():
            unprofiled = self.unprofiled(worker)
            if worker.leases or not waited_for.isdisjoint(worker.engines - unprofiled):
                continue
            for job, _ in self._candidates(worker, engine):
                if not job.is_request and self._is_worth_splitting(job, job.assignable):
                    yield job, worker

    def in_running_jobs(self) -> Iterator[Lease]:
        """Yield leases to stop, so that the rest of their jobs can probe an idle worker.

        Looks at workers that have just become idle, joined or changed their engines. A job is
        stopped at most once for each of them.
        """
        for worker in self._state.available():
            unprofiled = self.unprofiled(worker)
            if worker.leases or not unprofiled:
                continue
            if worker.idle_since != self._state.now and worker.id not in self._changed:
                continue
            self._changed.discard(worker.id)
            for lease in islice(self._state.running_jobs(), _SEARCHED):
                engine = lease.assignment.engine
                if engine not in unprofiled or lease.job.queued:
                    continue
                if self.is_in_flight(engine, worker.worker.worker_class):
                    continue
                if lease.phase is not LeasePhase.RUNNING:
                    # Stopping it now would waste its setup: look again when it runs.
                    self._changed.add(worker.id)
                    continue
                job = lease.job
                if worker.id not in job.stopped_on and self._is_worth_splitting(
                    job, lease.remaining
                ):
                    job.stopped_on |= {worker.id}
                    yield lease
                    break

    def _is_worth_splitting(self, job: JobRecord, queries: int) -> bool:
        """Return whether the profiled workers take long for so many of the job's queries."""
        estimates = [
            (self._state.per_query_s(job, worker, estimate), estimate)
            for worker in self._state.serving(job.job.engine)
            if (estimate := self._state.estimator.estimate(job.job.engine, worker)) is not None
        ]
        if not estimates or queries <= self._queries:
            return False
        per_query_s, fastest = min(estimates, key=lambda each: each[0])
        left_s = queries / sum(1.0 / each for each, _ in estimates)
        probe_s = 2.0 * fastest.entry.t_pre_s + SLOWER * self._queries * per_query_s
        return left_s >= max(WORTH_S, probe_s)

    def for_idle_workers(self) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        """Yield probes for workers that the policy left idle."""
        for worker, engine in self._missing_pairs():
            if not worker.leases:
                yield from self._candidates(worker, engine)

    def _missing_pairs(self) -> list[tuple[WorkerRecord, EngineName]]:
        """Return available workers with an unprofiled engine that some job waits for."""
        waited_for = self._state.queue.engines()
        return [
            (worker, engine)
            for worker in self._state.available()
            for engine in sorted(self.unprofiled(worker) & waited_for)
        ]

    def _candidates(
        self, worker: WorkerRecord, engine: EngineName
    ) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        if self.is_in_flight(engine, worker.worker.worker_class):
            return
        if not math.isfinite(worker.free_at(self._state.now)):
            return
        for job in islice(self._state.queue.in_order({engine}), _TRIED):
            if self._state.estimator.to_measure(job, worker) is not None:
                yield job, worker
                return


# An engine without a profile is estimated from the queries that it has answered. If these stalled,
# it looks slow, gets no others, and nothing corrects the estimate. So an engine that is not used on
# a worker, and looks much slower there than when the worker inspected it, is expected after a pause
# to take what it took then. The next query shows which is right. The pause doubles each time: a
# worker that is slow gets a query after 10, 30, 70 s and so on, which are eight in an hour.

MUCH_SLOWER: Final = 4.0
"""Multiple of the inspected time of a query from which on an estimate is doubted."""
FIRST_PAUSE_S: Final = 10.0


@dataclass(slots=True)
class _Doubt:
    """An estimate that looks too long.

    Attributes:
        pace: the observed pace, which changes with every query.
        since: when it last changed.
        tries: how often the engine was tried again.
    """

    pace: float
    since: float
    tries: int = 0


class Exploration:
    """Doubts estimates that rest on queries in service, and are not corrected by others."""

    def __init__(self, state: State, leases: Leases) -> None:
        self._state = state
        self._leases = leases
        self._doubts: dict[tuple[WorkerId, EngineName], _Doubt] = {}
        state.forget_worker.append(self._forget_worker)

    def _forget_worker(self, worker: WorkerRecord) -> None:
        for engine in worker.query_s:
            self._doubts.pop((worker.id, engine), None)

    def check(self) -> None:
        """Expect the inspected times again of engines that have been avoided for long."""
        for worker in self._state.fleet.workers.values():
            for engine, inspected_s in worker.query_s.items():
                known = worker.estimates.get(engine)
                if known and all(each.entry.label == OBSERVED for each in known):
                    self._look_at(worker, engine, known[0], inspected_s)

    def _look_at(
        self, worker: WorkerRecord, engine: EngineName, estimate: Estimate, inspected_s: float
    ) -> None:
        observed, now = worker.observed, self._state.now
        if engine in observed.guessed:
            return
        if estimate.per_query_s <= MUCH_SLOWER * inspected_s:
            self._doubts.pop((worker.id, engine), None)
            return
        pace = observed.pace.get(engine, 1.0)
        doubt = self._doubts.setdefault((worker.id, engine), _Doubt(pace, now))
        if pace != doubt.pace or any(
            lease.assignment.engine == engine for lease in worker.all_leases()
        ):
            doubt.pace, doubt.since = pace, now
        elif now - doubt.since >= FIRST_PAUSE_S * 2.0 ** min(doubt.tries, 30):
            doubt.tries, doubt.since = doubt.tries + 1, now
            self._state.estimator.guess(
                engine, worker, inspected_s, self._leases.paced_jobs(engine)
            )
            self._state.waiting.mark_drifted(engine)
