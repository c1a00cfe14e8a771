"""The seam between the core and what decides: one small file per policy behind a protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from synergai.runtime.plugins import Registry
from synergai.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.domain import Configuration, EngineName, WorkerId
    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.events import SchedulingSettings
    from synergai.scheduling.fleet import Fleet
    from synergai.scheduling.queue import JobQueue
    from synergai.scheduling.state import JobRecord, Lease, WorkerRecord


@value()
class Give:
    """Lease the job's next `count` queries to the worker, in the estimate's configuration."""

    job: JobRecord
    worker: WorkerRecord
    estimate: Estimate
    count: int


@value()
class Preempt:
    """Stop the lease at its next query; its remainder is queued again."""

    lease: Lease


Decision: TypeAlias = Give | Preempt


SPARE: Final = 0.7
"""Part of the remaining time that a thrifty configuration may use up."""


class Candidate(NamedTuple):
    """A worker that could run a job, and when it would be through with it."""

    completes_at: float
    order: int
    worker: WorkerRecord
    estimate: Estimate


class View:
    """What a policy may look at; it changes nothing through it.

    Attributes:
        now: the instant of the event.
        thrifty: the objective is ``energy``.
    """

    def __init__(
        self, queue: JobQueue, fleet: Fleet, estimator: Estimator, settings: SchedulingSettings
    ) -> None:
        self.queue = queue
        self.now = 0.0
        self._fleet = fleet
        self._estimator = estimator
        self.thrifty = settings.objective == "energy"

    @property
    def workers(self) -> Mapping[WorkerId, WorkerRecord]:
        """The whole fleet."""
        return self._fleet.workers

    def available(self) -> list[WorkerRecord]:
        """The workers that may be given work now, in the order in which they joined."""
        return self._fleet.available(self.now)

    def serving(self, engine: EngineName) -> Sequence[WorkerRecord]:
        """The workers that have `engine`."""
        return self._fleet.serving(engine)

    def soonest(self, count: int, engine: EngineName) -> list[WorkerRecord]:
        """The busy workers with `engine` that become available soonest by time alone."""
        return self._fleet.soonest(count, engine)

    def estimate(
        self, engine: EngineName, worker: WorkerRecord, configuration: Configuration | None = None
    ) -> Estimate | None:
        """What `engine` costs on `worker`; None if that was never profiled.

        Args:
            engine: what is to be run.
            worker: where.
            configuration: how; the fastest way if it is None or was not profiled.
        """
        estimates = self._estimator.estimates(engine, worker)
        for estimate in estimates if configuration is not None else ():
            if estimate.configuration == configuration:
                return estimate
        return estimates[0] if estimates else None

    def setup_s(self, job: JobRecord, worker: WorkerRecord, estimate: Estimate) -> float:
        """Setup that is still to be paid if the job comes next on the worker."""
        return 0.0 if worker.is_set_up_for(job, self.now) else estimate.setup_s

    def choice(self, job: JobRecord, worker: WorkerRecord) -> Estimate | None:
        """In which configuration the worker is to run the job; None if it cannot.

        The fastest one; with the objective ``energy`` the thriftiest of those in which the
        worker, if it were free, would meet the deadline alone with time to spare.
        """
        if job.job.engine not in worker.engines or worker.draining:
            return None
        estimates = self._estimator.estimates(job.job.engine, worker)
        if not estimates:
            return None
        if not self.thrifty:
            return estimates[0]
        budget_s = SPARE * (job.job.deadline - self.now)
        with_tensors = job.job.with_tensors
        in_time = [
            e for e in estimates if e.seconds(job.left, with_tensors=with_tensors) <= budget_s
        ]
        return min(in_time, key=_joules, default=estimates[0])

    def per_query_s(self, job: JobRecord, worker: WorkerRecord, estimate: Estimate) -> float:
        """Seconds per query, at the pace that the worker has shown on this very job, if any."""
        if job.paces and (shown := job.paces.get(worker.id)) is not None:
            return shown / estimate.entry.qps
        return estimate.per_query_s + (estimate.transfer_s if job.job.with_tensors else 0.0)

    def candidates(
        self,
        job: JobRecord,
        workers: Iterable[WorkerRecord],
        configurations: Mapping[str, Configuration] | None = None,
    ) -> list[Candidate]:
        """Those of `workers` that can run all of the job that is left, the best one first.

        The best one is soonest done; with the objective ``energy`` it is, as far as any meets
        the deadline, the one with the least joules per query.

        Args:
            job: what is to be run.
            workers: who is asked.
            configurations: predefined ones by worker class, instead of the best ones.
        """
        engine = job.job.engine
        found: list[Candidate] = []
        for worker in workers:
            if engine not in worker.engines:
                continue
            if configurations is not None:
                estimate = self.estimate(
                    engine, worker, configurations.get(worker.worker.worker_class)
                )
                estimates: Iterable[Estimate] = () if estimate is None else (estimate,)
            else:
                estimates = self._estimator.estimates(engine, worker)
                if not self.thrifty:
                    estimates = estimates[:1]
            free_at = worker.free_at(self.now)
            for estimate in estimates:
                per_query_s = self.per_query_s(job, worker, estimate)
                setup_s = self.setup_s(job, worker, estimate)
                completes_at = free_at + setup_s + job.pending.total * per_query_s
                found.append(Candidate(completes_at, worker.index, worker, estimate))
        if self.thrifty:
            return _thriftiest(found, job.job.deadline)
        if len(found) > 1:
            found.sort(key=_soonest)
        return found

    def bounds(self, workers: Sequence[WorkerRecord]) -> dict[EngineName, tuple[float, float]]:
        """The least setup and the least seconds per query of `workers`, by waiting engine."""
        bounds: dict[EngineName, tuple[float, float]] = {}
        for engine in self.queue.engines():
            estimates = [
                estimate
                for worker in workers
                if engine in worker.engines
                and (estimate := self._estimator.estimate(engine, worker)) is not None
            ]
            if estimates:
                bounds[engine] = (
                    min(e.setup_s for e in estimates),
                    min(e.per_query_s for e in estimates),
                )
        return bounds


def _soonest(candidate: Candidate) -> tuple[float, int]:
    return candidate.completes_at, candidate.order


def _joules(estimate: Estimate) -> float:
    return estimate.joules


def _thriftiest(found: list[Candidate], deadline: float) -> list[Candidate]:
    """One candidate per worker: those in time by joules, then the others by completion."""
    best: dict[int, tuple[bool, float, Candidate]] = {}
    for candidate in found:
        late = candidate.completes_at > deadline
        cost = candidate.completes_at if late else candidate.estimate.joules
        key = (late, cost, candidate)
        if candidate.order not in best or key[:2] < best[candidate.order][:2]:
            best[candidate.order] = key
    ranked = sorted(best.values(), key=lambda key: (key[0], key[1], *_soonest(key[2])))
    return [candidate for _, _, candidate in ranked]


class Policy(Protocol):
    """Decides which waiting job goes where. Holds no clock; time comes with the view.

    Attributes:
        rebalances: it wants to decide although nobody waits, to move what is running.
    """

    rebalances: bool

    def rank(self, job: JobRecord) -> float:
        """The job's order key; lower goes first. It must not depend on the current time.

        Its `latest_start` is up to date: deadline minus the least time that any worker would
        need for what is pending of it.
        """

    def decide(self, view: View) -> Sequence[Decision]:
        """What to do now: at most one `Give` per worker; asked again until it has no more."""


POLICIES: Final = Registry[Policy](
    "synergai.policies",
    {
        "be": "synergai.scheduling.policies.be:BestEffort",
        "edf": "synergai.scheduling.policies.edf:EarliestDeadlineFirst",
        "fifo": "synergai.scheduling.policies.fifo:Fifo",
        "lru": "synergai.scheduling.policies.lru:LeastRecentlyUsed",
        "malleable": "synergai.scheduling.policies.malleable.policy:Malleable",
        "mru": "synergai.scheduling.policies.mru:MostRecentlyUsed",
        "rr": "synergai.scheduling.policies.rr:RoundRobin",
        "slo_mael": "synergai.scheduling.policies.slo_mael:SloMael",
        "srr": "synergai.scheduling.policies.srr:StrictRoundRobin",
        "synergai": "synergai.scheduling.policies.synergai:SynergAI",
    },
)
