"""Base of the profile-agnostic policies: arrival order and predefined configurations.

Each worker class runs all engines in one configuration, set as a policy option
(``x86=threads=16``). The default is the largest on the CPU: most threads, then fastest power mode.
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
        return view.predefined_estimate(job, worker, self.of(worker))


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
