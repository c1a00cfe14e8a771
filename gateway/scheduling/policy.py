"""The seam between the core and what decides: one small file per policy behind a protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from synergai.plugins import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.scheduling.estimator import Estimate, Estimator
    from gateway.scheduling.events import SchedulingSettings
    from gateway.scheduling.queue import JobQueue
    from gateway.scheduling.state import JobRecord, Lease, WorkerRecord
    from synergai.domain import EngineName


@dataclass(frozen=True, slots=True)
class Give:
    """Lease the job's next `count` queries to the worker, in the estimate's configuration."""

    job: JobRecord
    worker: WorkerRecord
    estimate: Estimate
    count: int


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop the lease at its next query; its remainder is queued again."""

    lease: Lease


Decision: TypeAlias = Give | Preempt


class Candidate(NamedTuple):
    """A worker that could run a job, and when it would be through with it."""

    completes_at: float
    order: int
    worker: WorkerRecord
    estimate: Estimate


class View:
    """What a policy may look at; it changes nothing through it."""

    def __init__(
        self,
        queue: JobQueue,
        estimator: Estimator,
        settings: SchedulingSettings,
        workers: Iterable[WorkerRecord],
        now: float,
    ) -> None:
        self.queue = queue
        self.now = now
        self.workers = workers
        self._estimator = estimator
        self._settings = settings

    def available(self) -> list[WorkerRecord]:
        """The workers that may be given work now."""
        return [w for w in self.workers if w.available(self.now, self._settings)]

    def estimate(self, engine: EngineName, worker: WorkerRecord) -> Estimate | None:
        """What `engine` costs on `worker`; None if that was never profiled."""
        return self._estimator.estimate(engine, worker)

    def candidates(self, job: JobRecord, workers: Sequence[WorkerRecord]) -> list[Candidate]:
        """Those of `workers` that can run all of the job that is left, soonest done first."""
        engine = job.job.engine
        found = []
        for worker in workers:
            if engine not in worker.engines:
                continue
            estimate = self._estimator.estimate(engine, worker)
            if estimate is not None:
                seconds = estimate.seconds(job.pending.total, with_tensors=job.job.with_tensors)
                completes_at = worker.free_at(self.now) + seconds
                found.append(Candidate(completes_at, worker.index, worker, estimate))
        found.sort()
        return found


class Policy(Protocol):
    """Decides which waiting job goes where. Holds no clock; time comes with the view."""

    def rank(self, job: JobRecord, fastest_s: float) -> float:
        """The job's order key; lower goes first. It must not depend on the current time.

        Args:
            job: the job that is about to wait.
            fastest_s: the least time that any worker would need for the rest of it; 0 if none
                is profiled.
        """

    def decide(self, view: View) -> Sequence[Decision]:
        """What to do now: at most one `Give` per worker; asked again until it has no more."""


POLICIES: Final = Registry[Policy](
    "synergai.policies",
    {
        "synergai": "gateway.scheduling.policies.synergai:SynergAI",
        "fifo": "gateway.scheduling.policies.fifo:Fifo",
    },
)
