"""What a policy is, and what it may decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.estimator import Estimator
    from synergai.core.scheduling.state.jobs import JobRecord, Lease
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.core.scheduling.view import View
    from synergai.domain import EngineName


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
