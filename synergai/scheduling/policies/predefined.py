"""What the schedulers share that know no profile: arrival order, and predefined configurations.

They run every engine on a worker in one configuration, which the operator predefines per worker
class as an option (``x86=threads=16``). Without one it is the worker's largest: the most threads
and the highest power mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from synergai.domain import Configuration
from synergai.scheduling.policy import Candidate, Decision, Give, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.state import JobRecord, WorkerRecord


class Predefined:
    """Which configuration a worker runs everything in.

    Args:
        configurations: texts of configurations by worker class.

    Raises:
        InvalidInput: one of them is not a configuration.
    """

    def __init__(self, **configurations: str) -> None:
        self._configurations = {
            name: Configuration.parse(text) for name, text in configurations.items()
        }

    def of(self, worker: WorkerRecord) -> Configuration:
        """The worker's predefined configuration."""
        known = worker.worker
        return self._configurations.get(known.worker_class) or max(known.configurations)

    def estimate(self, view: View, job: JobRecord, worker: WorkerRecord) -> Estimate | None:
        """What the job's engine costs on the worker; None if it is not profiled there.

        Where it was not profiled in the predefined configuration, it is run in its fastest.
        """
        if job.job.engine not in worker.engines:
            return None
        return view.estimate(job.job.engine, worker, self.of(worker))


class InTurn(ABC):
    """Base of the policies that give the oldest job to the worker whose turn it is."""

    rebalances = False

    def __init__(self, **configurations: str) -> None:
        self._predefined = Predefined(**configurations)

    def rank(self, job: JobRecord) -> float:
        """Time of arrival."""
        return job.job.arrival

    def decide(self, view: View) -> list[Decision]:
        """Give the oldest job that can be run to whom `choose` names; one at a time."""
        available = view.available()
        engines = {engine for worker in available for engine in worker.engines}
        for job in view.queue.in_order(engines):
            able = [
                Candidate(worker.free_at(view.now), worker.index, worker, estimate)
                for worker in available
                if (estimate := self._predefined.estimate(view, job, worker)) is not None
            ]
            if not able:
                continue
            chosen = self.choose(view, job, able)
            if chosen is None:
                # The oldest job keeps its place: whoever comes after it waits as well.
                return []
            return [Give(job, chosen.worker, chosen.estimate, job.leasable)]
        return []

    @abstractmethod
    def choose(self, view: View, job: JobRecord, able: Sequence[Candidate]) -> Candidate | None:
        """One of the available workers that are `able` to run the job, or None to wait.

        `able` is not empty, and is in the order in which the workers joined.
        """
