"""The interface between the core and its policies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from msgspec import Struct

from synergai.core.scheduling.job_queue import JobQueue
from synergai.core.scheduling.state.estimate import LONG_S, Estimate
from synergai.core.scheduling.state.estimator import Estimator
from synergai.core.scheduling.state.fleet import Fleet
from synergai.core.scheduling.state.loads import Loads
from synergai.core.scheduling.variants.choice import Variants

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.core.scheduling.state.jobs import JobRecord, Lease
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import Configuration, EngineName, WorkerClass, WorkerId
    from synergai.profiles.dictionary import ConfigurationDictionary


# The places of a machine are workers with cores of their own, but they share its caches, its memory
# bandwidth and its clock. How much an engine is slowed down by another one is learned from the
# progress that is reported while both run; the pace of a worker, from the progress while nothing
# else runs.

_PRIOR_S: Final = 0.1
"""Time that the assumption of no contention counts for."""
_HORIZON_S: Final = 10.0
"""Time over which a slow-down is learned."""
MAX_SLOWDOWN: Final = 8.0
"""Largest slow-down that is believed."""
MOST_PAIRS: Final = 4096
"""Pairs that are remembered, those that were seen last: engines come and go with their versions."""


class Contention:
    """Slow-downs of pairs of engines by worker class."""

    def __init__(self) -> None:
        # Of an engine by another one: the factor, and the seconds that it rests on.
        self._pairs: dict[tuple[WorkerClass, EngineName, EngineName], tuple[float, float]] = {}

    def slowdown(
        self, worker: WorkerRecord, engine: EngineName, company: Iterable[EngineName]
    ) -> float:
        """Return how many times as long an engine takes on a worker while other engines run."""
        worker_class = worker.worker.worker_class
        pairs = (self._pairs.get((worker_class, engine, other)) for other in company)
        return math.prod(pair[0] for pair in pairs if pair is not None)

    def observe(
        self,
        worker: WorkerRecord,
        engine: EngineName,
        company: tuple[EngineName, ...],
        seconds: float,
        alone_s: float,
    ) -> None:
        """Learn from queries that took `seconds` in company, and would take `alone_s` alone.

        Several other engines are taken to contribute equally to what differs from the slow-down
        that was expected.
        """
        expected = self.slowdown(worker, engine, company)
        seen = min(max(seconds / alone_s, 1.0), MAX_SLOWDOWN)
        correction = (seen / expected) ** (1 / len(company))
        for other in company:
            key = worker.worker.worker_class, engine, other
            believed, weight_s = self._pairs.pop(key, (1.0, _PRIOR_S))
            factor = believed * correction
            share = seconds / (weight_s + seconds)
            self._pairs[key] = (
                max(1.0, believed + share * (factor - believed)),
                min(weight_s + seconds, _HORIZON_S),
            )
        while len(self._pairs) > MOST_PAIRS:
            del self._pairs[next(iter(self._pairs))]


class Assign(Struct, frozen=True):
    """Assign the job's next `count` queries to the worker in the estimate's configuration."""

    job: JobRecord
    worker: WorkerRecord
    estimate: Estimate
    count: int


class Preempt(Struct, frozen=True):
    """Stop the lease at its next query and requeue its remaining queries."""

    lease: Lease


class Expect(Struct, frozen=True):
    """The policy plans to complete the job at `completes_at`; it commands nothing.

    From policies that plan further than the next assignment. The job's completion is estimated
    from its assignments otherwise. The expectation of a job that later plans leave out is kept
    until the instant passes: more urgent work displaced the job, and an estimate from assignments
    would ignore all that waits ahead of it.
    """

    job: JobRecord
    completes_at: float


Decision: TypeAlias = Assign | Preempt | Expect

SIMILAR: Final = 1.25
"""Workers are as good for a request that would answer it within this multiple of the least time."""
ENERGY_SLACK: Final = 0.7
"""Fraction of the time to the deadline that an energy-saving configuration may use."""


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
        self.contention = Contention()
        self.variants = Variants(self.estimator, self.fleet, self.queue, settings)
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
        """Return seconds per query while the worker's machine runs what it runs now."""
        alone_s = self.alone_query_s(job, worker, estimate)
        if not worker.mates:
            return alone_s
        return alone_s * self.contention.slowdown(worker, job.job.engine, worker.company)

    def alone_query_s(self, job: JobRecord, worker: WorkerRecord, estimate: Estimate) -> float:
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

    def cost_bounds(self, workers: Sequence[WorkerRecord]) -> LeastCosts:
        """Return the least setup and least seconds per query of `workers`, by engine."""
        return LeastCosts(tuple(workers), self.estimator)


class LeastCosts:
    """Least cost of each engine on any of some workers, computed for the engines asked for."""

    def __init__(self, workers: Sequence[WorkerRecord], estimator: Estimator) -> None:
        self._workers = workers
        self._estimator = estimator
        self._found: dict[EngineName, tuple[float, float] | None] = {}

    def of(self, engine: EngineName) -> tuple[float, float] | None:
        """Return the least setup and least seconds per query; None if none can run it."""
        try:
            return self._found[engine]
        except KeyError:
            found = self._found[engine] = self._least(engine)
            return found

    def _least(self, engine: EngineName) -> tuple[float, float] | None:
        estimates = [
            estimate
            for worker in self._workers
            if engine in worker.engines
            for place, estimate in enumerate(self._estimator.estimates(engine, worker))
            if place == 0 or estimate.job_batches
        ]
        if not estimates:
            return None
        return min(e.setup_s for e in estimates), min(e.least_s for e in estimates)


def engines_of(workers: Sequence[WorkerRecord]) -> Collection[EngineName]:
    """Return the engines that any of `workers` has; not to be changed."""
    if len(workers) == 1:
        return workers[0].engines
    return set().union(*(worker.engines for worker in workers))


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


class Policy(Protocol):
    """Decides which waiting job runs where. Holds no clock; the time comes with the view.

    Attributes:
        rebalances: also decides while no job waits, to move running work.
    """

    rebalances: bool

    def rank(self, job: JobRecord) -> float:
        """Return the job's order key; lower goes first. Must not depend on the current time.

        The job's `latest_start` is up to date: the deadline minus the least time that any worker
        needs for its pending queries.
        """

    def decide(self, view: View) -> Sequence[Decision]:
        """Return the decisions for now, at most one `Assign` per worker.

        Called again until its decisions command nothing.
        """
