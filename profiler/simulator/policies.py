"""The thesis's policies that only experiments compare, beside those that the gateway offers.

A worker class runs all engines in one configuration, set as a policy option (``x86=threads=16``).
The default is the largest on the CPU: most threads, then fastest power mode.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import product
from typing import TYPE_CHECKING, Final

from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.policy import Assign, Decision, engines_of
from synergai.core.scheduling.view import Candidate, View
from synergai.domain import Configuration, largest_configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import JobId, WorkerId


class PredefinedConfigurations:
    """The configuration of each worker."""

    def __init__(self, **configurations: str) -> None:
        self._configurations = {
            name: Configuration.parse(text) for name, text in configurations.items()
        }

    def of(self, worker: WorkerRecord) -> Configuration:
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
    """Base of the policies that assign the oldest job to a worker chosen in turn (chapter 7).

    They know no profile.
    """

    rebalances = False

    def __init__(self, **configurations: str) -> None:
        self._predefined = PredefinedConfigurations(**configurations)

    def rank(self, job: JobRecord) -> float:
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
        return min(candidates, key=lambda c: (c.worker.idle_since, c.worker.index))


class MostRecentlyUsed(ArrivalOrder):
    """Keeps to warm workers, at the risk of leaving others unused."""

    def choose(self, _view: View, _job: JobRecord, candidates: Sequence[Candidate]) -> Candidate:
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


MAX_MAPPINGS: Final = 1024
"""Bound on the mappings scored per window; further jobs go into the next window."""


class SloMael:
    """SLO-MAEL: minimum average expected latency under deadlines (thesis, chapter 7, [1]).

    Scores every mapping of a window of requests to workers: a deadline met counts one, a deadline
    missed costs in proportion to the miss. Ties go to the least sum of expected latencies. Requests
    stay bound to their worker; an idle worker runs the bound request with the least slack. As in
    the thesis, there is no model slicing, and configurations are predefined.
    """

    rebalances = False

    def __init__(self, **configurations: str) -> None:
        self._predefined = PredefinedConfigurations(**configurations)
        self._bindings: dict[JobId, tuple[JobRecord, WorkerRecord]] = {}

    def rank(self, job: JobRecord) -> float:
        """Return the arrival time, in which order windows are filled."""
        return job.job.arrival

    def decide(self, view: View) -> list[Decision]:
        """Bind new jobs, then assign each available worker its bound job with the least slack."""
        self._prune_bindings(view)
        while window := self._window(view):
            for job, worker in self._best_mapping(view, window):
                self._bindings[job.job.id] = (job, worker)
        decisions: list[Decision] = []
        for worker in view.available():
            bound = [job for job, bound_to in self._bindings.values() if bound_to is worker]
            if bound:
                job = min(bound, key=lambda job: (job.latest_start, job.sequence))
                estimate = self._estimate(view, job, worker)
                decisions.append(Assign(job, worker, estimate, job.assignable))
        return decisions

    def _prune_bindings(self, view: View) -> None:
        """Drop bindings of jobs that no longer wait and of workers that can no longer run them."""
        self._bindings = {
            job_id: (job, worker)
            for job_id, (job, worker) in self._bindings.items()
            if job.queued
            and view.workers.get(worker.id) is worker
            and not worker.withdrawn
            and self._predefined.estimate(view, job, worker) is not None
        }

    def _window(self, view: View) -> list[tuple[JobRecord, list[WorkerRecord]]]:
        """Return the oldest unbound jobs and the workers for each, within `MAX_MAPPINGS`."""
        window: list[tuple[JobRecord, list[WorkerRecord]]] = []
        mappings = 1
        for job in view.queue.in_order():
            if job.job.id in self._bindings:
                continue
            able = [
                worker
                for worker in view.serving(job.job.engine)
                if not worker.withdrawn and self._predefined.estimate(view, job, worker) is not None
            ]
            if not able:
                continue
            mappings *= len(able)
            if window and mappings > MAX_MAPPINGS:
                break
            window.append((job, able))
        return window

    def _best_mapping(
        self, view: View, window: Sequence[tuple[JobRecord, list[WorkerRecord]]]
    ) -> list[tuple[JobRecord, WorkerRecord]]:
        ready_at = {worker.id: worker.free_at(view.now) for worker in view.workers.values()}
        for job, worker in self._bindings.values():
            ready_at[worker.id] += self._seconds(view, job, worker)
        jobs = [job for job, _ in window]
        seconds = {
            (job.sequence, worker.id): self._seconds(view, job, worker)
            for job, able in window
            for worker in able
        }
        best: tuple[WorkerRecord, ...] = ()
        best_score = (-math.inf, -math.inf)
        for mapping in product(*(able for _, able in window)):
            score = _score(jobs, mapping, seconds, dict(ready_at))
            if score > best_score or not best:
                best, best_score = mapping, score
        return list(zip(jobs, best, strict=True))

    def _seconds(self, view: View, job: JobRecord, worker: WorkerRecord) -> float:
        estimate = self._estimate(view, job, worker)
        return estimate.seconds(job.pending.total, with_tensors=job.job.with_tensors)

    def _estimate(self, view: View, job: JobRecord, worker: WorkerRecord) -> Estimate:
        estimate = self._predefined.estimate(view, job, worker)
        if estimate is None:
            raise RuntimeError(f"job {job.job.id} is bound to {worker.id}, which cannot run it")
        return estimate


def _score(
    jobs: Sequence[JobRecord],
    mapping: Sequence[WorkerRecord],
    seconds: dict[tuple[int, WorkerId], float],
    ready_at: dict[WorkerId, float],
) -> tuple[float, float]:
    """Return deadlines met minus proportional misses, then the negated sum of latencies."""
    met, total_latency = 0.0, 0.0
    for job, worker in zip(jobs, mapping, strict=True):
        ready_at[worker.id] += seconds[job.sequence, worker.id]
        latency_s = ready_at[worker.id] - job.job.arrival
        qos = job.job.deadline - job.job.arrival
        met += 1.0 if latency_s <= qos else -(latency_s - qos) / qos if qos > 0 else -math.inf
        total_latency += latency_s
    return met, -total_latency


POLICIES.add(
    {
        "be": f"{__name__}:BestEffort",
        "lru": f"{__name__}:LeastRecentlyUsed",
        "mru": f"{__name__}:MostRecentlyUsed",
        "rr": f"{__name__}:RoundRobin",
        "slo_mael": f"{__name__}:SloMael",
        "srr": f"{__name__}:StrictRoundRobin",
    }
)
