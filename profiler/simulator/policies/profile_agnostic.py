"""The thesis's policies that know no profile (chapter 7): arrival order, predefined configurations.

A worker class runs all engines in one configuration, set as a policy option (``x86=threads=16``).
The default is the largest on the CPU: most threads, then fastest power mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from synergai.core.scheduling.policy import Assign, Candidate, Decision, View, engines_of
from synergai.domain import Configuration, largest_configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.state.workers import WorkerRecord


class PredefinedConfigurations:
    """The configuration of each worker."""

    def __init__(self, **configurations: str) -> None:
        self._configurations = {
            name: Configuration.parse(text) for name, text in configurations.items()
        }

    def of(self, worker: WorkerRecord) -> Configuration:
        """Return the worker's predefined configuration."""
        description = worker.worker
        given = self._configurations.get(description.worker_class)
        return given or largest_configuration(description.configurations)

    def estimate(self, view: View, job: JobRecord, worker: WorkerRecord) -> Estimate | None:
        """Return the cost of the job on the worker; None if it is not profiled there.

        Falls back to the fastest configuration if the predefined one is not profiled. None as well
        if the worker has no variant of the engine that the job may use now.
        """
        if job.job.engine not in worker.engines:
            return None
        estimates = view.estimator.for_job(job, worker)
        predefined = self.of(worker)
        in_predefined = (each for each in estimates if each.configuration.base == predefined)
        return next(in_predefined, estimates[0] if estimates else None)


class ArrivalOrder(ABC):
    """Base of the policies that assign the oldest job to a worker chosen in turn."""

    rebalances = False

    def __init__(self, **configurations: str) -> None:
        self._predefined = PredefinedConfigurations(**configurations)

    def rank(self, job: JobRecord) -> float:
        """Return the arrival time."""
        return job.job.arrival

    def decide(self, view: View) -> list[Decision]:
        """Assign the oldest runnable job to the worker that `choose` returns; one at a time."""
        available = view.available()
        if not available:
            return []
        for job in view.queue.in_order(engines_of(available)):
            candidates = [
                Candidate(worker.free_at(view.now), worker, estimate)
                for worker in available
                if (estimate := self._predefined.estimate(view, job, worker)) is not None
            ]
            if not candidates:
                continue
            chosen = self.choose(view, job, candidates)
            if chosen is None:
                # The oldest job keeps its turn; later jobs wait behind it.
                return []
            return [Assign(job, chosen.worker, chosen.estimate, job.assignable)]
        return []

    @abstractmethod
    def choose(
        self, view: View, job: JobRecord, candidates: Sequence[Candidate]
    ) -> Candidate | None:
        """Return one of the candidates, which are in order of joining, or None to wait."""


class BestEffort(ArrivalOrder):
    """Assigns each job to the strongest available worker.

    Args:
        order: worker classes, strongest first, separated by spaces. By default the strongest
            worker is the one with the highest QPS for the job's engine.
    """

    def __init__(self, order: str = "", **configurations: str) -> None:
        super().__init__(**configurations)
        self._order = {name: place for place, name in enumerate(order.split())}

    def choose(self, _view: View, _job: JobRecord, candidates: Sequence[Candidate]) -> Candidate:
        """Return the strongest candidate."""
        last = len(self._order)
        return min(
            candidates,
            key=lambda c: (
                self._order.get(c.worker.worker.worker_class, last),
                -c.estimate.entry.planned_qps,
                c.worker.index,
            ),
        )


class LeastRecentlyUsed(ArrivalOrder):
    """Spreads work evenly over the workers."""

    def choose(self, _view: View, _job: JobRecord, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that has been idle longest."""
        return min(candidates, key=lambda c: (c.worker.idle_since, c.worker.index))


class MostRecentlyUsed(ArrivalOrder):
    """Keeps to warm workers, at the risk of leaving others unused."""

    def choose(self, _view: View, _job: JobRecord, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that was active most recently."""
        return min(candidates, key=lambda c: (-c.worker.idle_since, c.worker.index))


class RoundRobin(ArrivalOrder):
    """Cycles over the available workers, regardless of their speed.

    Requests have a cycle of their own, so that they do not change where jobs run.
    """

    def __init__(self, **configurations: str) -> None:
        super().__init__(**configurations)
        self._last = {False: -1, True: -1}  # by whether it is a request

    def choose(self, _view: View, job: JobRecord, candidates: Sequence[Candidate]) -> Candidate:
        """Return the first candidate after the worker that got the last job."""
        last = self._last[job.is_request]
        chosen = next((c for c in candidates if c.worker.index > last), candidates[0])
        self._last[job.is_request] = chosen.worker.index
        return chosen


class StrictRoundRobin(ArrivalOrder):
    """Cycles over all workers; a job waits for the next one in turn.

    Requests have a cycle of their own, so that they do not change where jobs run.
    """

    def __init__(self, **configurations: str) -> None:
        super().__init__(**configurations)
        self._last = {False: -1, True: -1}  # by whether it is a request

    def choose(
        self, view: View, job: JobRecord, candidates: Sequence[Candidate]
    ) -> Candidate | None:
        """Return the next worker that serves the job's engine, or None while it is busy."""
        last = self._last[job.is_request]
        circle = sorted(
            worker.index
            for worker in view.serving(job.job.engine)
            if not worker.withdrawn and _can_run(view, job, worker)
        )
        following = next((index for index in circle if index > last), circle[0])
        chosen = next((c for c in candidates if c.worker.index == following), None)
        if chosen is not None:
            self._last[job.is_request] = following
        return chosen


def _can_run(view: View, job: JobRecord, worker: WorkerRecord) -> bool:
    """Return whether a worker has a variant that a job with a floor or a pin may use."""
    return job.limit is None or bool(view.estimator.allowed(job, worker))
