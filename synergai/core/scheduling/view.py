"""What is known of jobs and workers: the fleet, and what policies and rules ask of it.

A worker becomes available on an event, or at a known instant shortly before its head
assignment ends. A heap of these instants avoids scanning all workers on every event.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from synergai.core.scheduling.job_queue import JobQueue
from synergai.core.scheduling.state.estimate import LONG_S, Estimate, Observed
from synergai.core.scheduling.state.estimator import Estimator
from synergai.core.scheduling.state.loads import Loads
from synergai.core.scheduling.state.workers import WorkerRecord
from synergai.core.scheduling.variants.choice import Variants

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from synergai.core.scheduling.events import Worker
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.core.scheduling.state.jobs import JobRecord, Lease
    from synergai.domain import Configuration, EngineName, WorkerId
    from synergai.profiles.dictionary import ConfigurationDictionary

_MAX_ABSENT: Final = 256
"""Absent workers whose observed times are kept, in case they return."""
SIMILAR: Final = 1.25
"""Workers are as good for a request that would answer it within this multiple of the least time."""
ENERGY_SLACK: Final = 0.7
"""Fraction of the time to the deadline that an energy-saving configuration may use."""


class Fleet:
    """All workers, by id, by engine and by availability.

    Attributes:
        interruptible: the workers on which a request can interrupt a job, by order of joining.
        shared: the busy workers that may run a request concurrently with other work.
    """

    def __init__(self, settings: SchedulingSettings) -> None:
        self.workers: dict[WorkerId, WorkerRecord] = {}
        self._settings = settings
        self._serving: dict[EngineName, list[WorkerRecord]] = {}
        self.interruptible: dict[int, WorkerRecord] = {}
        self.shared: dict[int, WorkerRecord] = {}
        self._available: dict[int, WorkerRecord] = {}
        self._upcoming: list[tuple[float, int, WorkerRecord]] = []
        self._next_index = 0
        # In the order in which the workers left.
        self._absent: dict[WorkerId, Observed] = {}

    def serving(self, engine: EngineName) -> Sequence[WorkerRecord]:
        """Return the workers that have `engine`."""
        return self._serving.get(engine, ())

    @property
    def engines(self) -> Iterable[EngineName]:
        """The engines that any worker has."""
        return self._serving.keys()

    def add(self, worker: Worker, now: float) -> WorkerRecord:
        """Add a worker whose id is not in the fleet."""
        if self._settings.strict:
            worker = replace(worker, cores=0)
        record = WorkerRecord(
            worker,
            self._next_index,
            set(),
            set(worker.sessions),
            unusable=set(worker.unusable),
            variants=dict(worker.variants),
            query_s=dict(worker.query_s),
            power_mode=worker.power_mode or None,
            observed=self._absent.pop(worker.id, Observed()),
            prefetch_s=self._settings.prefetch_s,
            idle_since=now,
        )
        self._next_index += 1
        self.workers[worker.id] = record
        self.set_engines(record, worker.engines)
        self.update_availability(record, now)
        return record

    def remove(self, worker: WorkerRecord) -> None:
        """Remove a worker; if it returns soon, its paces are still known."""
        del self.workers[worker.id]
        self._absent[worker.id] = worker.observed
        if len(self._absent) > _MAX_ABSENT:
            del self._absent[next(iter(self._absent))]
        for engine in worker.engines:
            self._remove_engine(worker, engine)
        self._available.pop(worker.index, None)
        self.interruptible.pop(worker.index, None)
        self.shared.pop(worker.index, None)
        worker.available_at = math.inf

    def void_absent_paces(self, engine: EngineName) -> None:
        """Forget the paces of an engine on absent workers, as a profile of it is replaced."""
        for observed in self._absent.values():
            observed.void_pace(engine)

    def set_engines(self, worker: WorkerRecord, engines: Iterable[EngineName]) -> None:
        """Replace the set of engines of `worker`, without those that it can run in no way."""
        new = {engine for engine in engines if worker.configurations(engine)}
        for engine in worker.engines - new:
            self._remove_engine(worker, engine)
        for engine in new - worker.engines:
            self._serving.setdefault(engine, []).append(worker)
        worker.engines = new

    def _remove_engine(self, worker: WorkerRecord, engine: EngineName) -> None:
        serving = self._serving[engine]
        serving.remove(worker)
        if not serving:
            del self._serving[engine]

    def update_availability(self, worker: WorkerRecord, now: float) -> None:
        """Recompute when `worker` becomes available, after its work has changed."""
        index, takes_more = worker.index, worker.takes_more
        if takes_more and worker.is_interruptible:
            self.interruptible[index] = worker
        elif index in self.interruptible:
            del self.interruptible[index]
        if takes_more and worker.worker.cores:
            self.shared[index] = worker
        elif index in self.shared:
            del self.shared[index]
        at = worker.next_available_at(self._settings)
        if at == worker.available_at:
            return
        worker.available_at = at
        if at <= now:
            self._available[index] = worker
            return
        self._available.pop(index, None)
        if at < math.inf:
            heapq.heappush(self._upcoming, (at, index, worker))
            if len(self._upcoming) > 4 * len(self.workers) + 16:
                self._upcoming = [one for one in self._upcoming if one[0] == one[2].available_at]
                heapq.heapify(self._upcoming)

    def available(self, now: float) -> list[WorkerRecord]:
        """Return the workers that accept an assignment now, in order of joining."""
        while self._upcoming and self._upcoming[0][0] <= now:
            at, index, worker = heapq.heappop(self._upcoming)
            if at == worker.available_at:
                self._available[index] = worker
        available = list(self._available.values())
        if len(available) > 1:
            available.sort(key=_index)
        return available

    def next_available_at(self, now: float) -> float:
        """Return when the next worker becomes available by time alone; infinite if none does."""
        while self._upcoming:
            at, _, worker = self._upcoming[0]
            if at > now and at == worker.available_at:
                return at
            heapq.heappop(self._upcoming)
            if at <= now and at == worker.available_at:
                self._available[worker.index] = worker
        return math.inf

    def next_available(self, count: int, engine: EngineName) -> list[WorkerRecord]:
        """Return the `count` busy workers with `engine` that become available soonest by time."""
        expected = (
            entry
            for entry in self._upcoming
            if entry[0] == entry[2].available_at and engine in entry[2].engines
        )
        return [worker for _, _, worker in heapq.nsmallest(count, expected)]


def _index(worker: WorkerRecord) -> int:
    return worker.index


class Candidate(Struct, frozen=True):
    """A worker that can run a job, and when it would complete its pending queries."""

    completes_at: float
    worker: WorkerRecord
    estimate: Estimate


class View:
    """What is known of jobs and workers; policies read it.

    Attributes:
        workers: the whole fleet.
        serving: returns the workers that have an engine.
        extended_at: when the fleet last gained a worker, an engine on one, or by a probe a profile.
        slowed_at: when the queries of a running job last turned out to be much slower.
    """

    def __init__(self, settings: SchedulingSettings, dictionary: ConfigurationDictionary) -> None:
        self.settings = settings
        self.now = -math.inf
        self.queue = JobQueue()
        self.fleet = Fleet(settings)
        self.workers: Mapping[WorkerId, WorkerRecord] = self.fleet.workers
        self.serving = self.fleet.serving
        self.loads = Loads()
        self.estimator = Estimator(dictionary, self.loads, settings)
        self.variants = Variants(self.estimator, self.workers, self.serving, self.queue, settings)
        self.extended_at = -math.inf
        self.slowed_at = -math.inf
        self.minimizes_energy = settings.objective == "energy"

    def available(self) -> list[WorkerRecord]:
        """Return the workers that accept an assignment now, in order of joining."""
        return self.fleet.available(self.now)

    def next_available(self, count: int, engine: EngineName) -> list[WorkerRecord]:
        """Return the busy workers with `engine` that become available soonest by time."""
        return self.fleet.next_available(count, engine)

    def running_jobs(self) -> Iterator[Lease]:
        """Yield the leases that workers run now, of jobs that a request may interrupt."""
        for worker in self.fleet.interruptible.values():
            head = worker.head
            if head is not None and not head.job.is_request and not head.stopping:
                yield head

    def estimate(
        self, engine: EngineName, worker: WorkerRecord, configuration: Configuration
    ) -> Estimate | None:
        """Return the cost of `engine` in the configuration, or else the fastest, if profiled."""
        estimates = self.estimator.estimates(engine, worker)
        for estimate in estimates:
            if estimate.configuration == configuration:
                return estimate
        return estimates[0] if estimates else None

    def setup_s(self, job: JobRecord, worker: WorkerRecord, estimate: Estimate) -> float:
        """Return the setup still to be paid if the job comes next on the worker."""
        if estimate.setup_s == 0.0:
            return 0.0
        session = estimate.session
        if worker.is_set_up_for(job, self.now) and (
            not (session.configuration.variant and worker.worker.keeps_sessions)
            # It may have run in another variant.
            or any(lease.session == session for lease in worker.leases.values())
        ):
            return 0.0
        return self.loads.left_s(worker, session, estimate.setup_s, self.now)

    def best_estimate(self, job: JobRecord, worker: WorkerRecord) -> Estimate | None:
        """Return the cost of the job in the worker's best configuration; None if it cannot run.

        The best configuration is the fastest; with the objective ``energy``, the one with the
        least joules per query among those that meet the deadline with slack on an idle worker.
        """
        if job.job.engine not in worker.engines or worker.withdrawn:
            return None
        estimates = self.estimator.for_job(job, worker)
        if not estimates:
            return None
        if not self.minimizes_energy:
            return self._chosen(job, worker, estimates[0])
        budget_s = ENERGY_SLACK * (job.job.deadline - self.now)
        with_tensors = job.job.with_tensors
        in_time = [
            e for e in estimates if e.seconds(job.remaining, with_tensors=with_tensors) <= budget_s
        ]
        return min(in_time, key=_joules, default=estimates[0])

    def _chosen(self, job: JobRecord, worker: WorkerRecord, fastest: Estimate) -> Estimate:
        """Return the variant in which a job would run; that of a request is chosen when it does."""
        variants = self.variants
        if not (variants.is_on and fastest.configuration.variant) or job.is_request:
            return fastest
        return variants.choose_for_job(job, worker, fastest, self.now)[0]

    def per_query_s(self, job: JobRecord, worker: WorkerRecord, estimate: Estimate) -> float:
        """Return seconds per query, at the pace observed on this very job if there is one."""
        gain = 1.0 if estimate.job_batches is None else estimate.batch_gain(job.job.queries)
        transfer_s = estimate.tensor_s(job.job.queries) if job.job.with_tensors else 0.0
        if job.paces and (shown := job.paces.get(worker.id)) is not None:
            return gain * shown / estimate.entry.qps + transfer_s
        return gain * estimate.per_query_s + transfer_s

    def lease_query_s(self, lease: Lease, worker: WorkerRecord, estimate: Estimate) -> float:
        """Return seconds per query of a lease in flight, by the current profile."""
        # What tensors take to reach the worker is learned with its estimates, and not by the job.
        if lease.job.job.with_tensors or not self.estimator.is_current(estimate.entry):
            current = self.estimate(lease.assignment.engine, worker, estimate.configuration)
            estimate = current or estimate
        return self.per_query_s(lease.job, worker, estimate)

    def candidates(self, job: JobRecord, workers: Iterable[WorkerRecord]) -> list[Candidate]:
        """Return the workers that can run the job's pending queries, best first.

        The best is the earliest to complete; with the objective ``energy``, the one with the least
        joules per query among those that meet the deadline. Of idle workers that would complete a
        request about equally soon, it is the one that has the most accurate variant loaded.
        """
        engine = job.job.engine
        found: list[Candidate] = []
        for worker in workers:
            if engine not in worker.engines:
                continue
            estimates = self.estimator.for_job(job, worker)
            if not self.minimizes_energy:
                estimates = estimates[:1]
            free_at = worker.free_at(self.now)
            for estimate in estimates:
                per_query_s = self.per_query_s(job, worker, estimate)
                setup_s = self.setup_s(job, worker, estimate) if estimate.setup_s else 0.0
                completes_at = free_at + setup_s + job.pending.total * per_query_s
                found.append(Candidate(completes_at, worker, estimate))
        if self.minimizes_energy:
            return _by_energy(found, job.job.deadline)
        if len(found) > 1:
            found.sort(key=_by_completion)
            if job.is_request and engine in self.variants.engines:
                self._prefer_loaded(job, found)
        return found

    def takers(self, job: JobRecord, available: Iterable[WorkerRecord]) -> list[Candidate]:
        """Return the candidates among available workers that take the job's queries now."""
        found = self.candidates(job, available)
        return [each for each in found if self.takes(each.worker, job, each.estimate)]

    def takes(self, worker: WorkerRecord, job: JobRecord, estimate: Estimate) -> bool:
        """Return whether an available worker takes the job's queries, in view of its batches.

        It takes none that would wait for a long query that runs concurrently in their session.
        """
        in_batches = job.shares_batches and bool(estimate.entry.batch_qps)
        runs = estimate.session in worker.concurrent
        if runs and not in_batches and estimate.per_query_s >= LONG_S:
            return False
        if not worker.groups or worker.groups[-1].most == 1:
            return True
        return worker.accepts(job.job.engine, in_batches=in_batches, now=self.now)

    def _prefer_loaded(self, job: JobRecord, found: list[Candidate]) -> None:
        """Put the idle worker first that lacks least of the variants that a request may use."""
        first = found[0]
        if first.worker.leases or not self.variants.missing_accuracy(job, first.worker, self.now):
            return
        limit = self.now + SIMILAR * (first.completes_at - self.now)
        similar = [c for c in found if c.completes_at <= limit and not c.worker.leases]
        best = min(similar, key=lambda c: self.variants.missing_accuracy(job, c.worker, self.now))
        found.remove(best)
        found.insert(0, best)


def _by_completion(candidate: Candidate) -> tuple[float, int]:
    return candidate.completes_at, candidate.worker.index


def _joules(estimate: Estimate) -> float:
    return estimate.joules


def _by_energy(found: list[Candidate], deadline: float) -> list[Candidate]:
    """Return one candidate per worker: those in time by joules, then the others by completion."""
    best: dict[int, tuple[bool, float, Candidate]] = {}
    for candidate in found:
        late = candidate.completes_at > deadline
        cost = candidate.completes_at if late else candidate.estimate.joules
        key = (late, cost, candidate)
        index = candidate.worker.index
        if index not in best or key[:2] < best[index][:2]:
            best[index] = key
    ranked = sorted(best.values(), key=lambda key: (key[0], key[1], *_by_completion(key[2])))
    return [candidate for _, _, candidate in ranked]
