"""CPU cost of a decision of the scheduling core, by number of jobs and workers.

Run with ``python benchmarks/scheduling.py``. Four tables:

* requests: a single request on a small fleet, from arrival to end;
* overload: arrivals and ends of requests while others wait;
* decisions: 24 jobs waiting for 3 workers;
* growth: events on fleets of up to 1,000 busy workers with up to 10,000 waiting jobs.
"""

from __future__ import annotations

import argparse
import gc
import random
from typing import TYPE_CHECKING

from benchmarks.timed_core import CONFIGURATION, TimedCore, make_core
from synergai.core.scheduling.events import JobArrived, QueriesDone
from synergai.domain import EngineName, Job, JobId, WorkerClass
from synergai.profiles.dictionary import ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.core import SchedulerCore

ENGINES = [EngineName(f"engine-{number}") for number in range(12)]
CLASSES = {WorkerClass("server"): 100.0, WorkerClass("agx"): 30.0, WorkerClass("nx"): 20.0}
POLICIES = ("synergai", "malleable")
WAITING = 64
"""Requests that wait under overload."""


def make_small_core(policy: str, workers: int, warm: Sequence[EngineName]) -> SchedulerCore:
    """Return a core with workers of all classes, which have sessions of the `warm` engines."""
    entries = [
        ProfileEntry(
            engine=engine,
            worker_class=name,
            configuration=CONFIGURATION,
            qps=qps / (1 + number / 4),
            model_load_s=10.0,
        )
        for number, engine in enumerate(ENGINES)
        for name, qps in CLASSES.items()
    ]
    return make_core(policy, entries, list(CLASSES), workers, warm)


class Traffic(TimedCore):
    """Generates events for a core and tracks its assignments."""

    def __init__(self, core: SchedulerCore, seed: int = 1) -> None:
        super().__init__(core)
        self._random = random.Random(seed)
        self._jobs = 0

    def submit(self, queries: int | None = None, budget_s: float | None = None) -> None:
        """Submit a job."""
        self._jobs += 1
        queries = queries or self._random.choice((488, 975, 1950, 3900))
        budget_s = budget_s or self._random.uniform(20.0, 400.0)
        job = Job(
            id=JobId(str(self._jobs)),
            engine=self._random.choice(ENGINES),
            queries=queries,
            arrival=self.now,
            deadline=self.now + budget_s,
        )
        self.handle(JobArrived(job, ready=queries))

    def report(self) -> None:
        """Report a random assignment as half done."""
        assignment = self._random.choice(list(self.in_flight.values()))
        self.handle(QueriesDone(assignment.id, assignment.count // 2))

    def end(self) -> None:
        """Complete a random assignment."""
        self.complete(self._random.choice(list(self.in_flight)))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


def requests(policy: str, count: int) -> None:
    """Measure single requests in sequence on three workers."""
    core = make_small_core(policy, 3, ENGINES[::2])
    traffic = Traffic(core)
    for _ in range(200):
        traffic.submit(1, 1.0)
        traffic.end()
    traffic.costs_s.clear()
    for _ in range(count):
        traffic.now += 0.001
        traffic.submit(1, 1.0)
        traffic.end()
    pairs = [a + b for a, b in zip(*[iter(traffic.costs_s)] * 2, strict=True)]
    print(f"{policy:>10} {percentile(pairs, 50) * 1e6:10.1f} {percentile(pairs, 99) * 1e6:10.1f}")


def overload(policy: str, workers: int, rounds: int) -> None:
    """Measure requests for loaded engines, of which `WAITING` wait."""
    core = make_small_core(policy, workers, ENGINES)
    traffic = Traffic(core)
    while core.queued < WAITING:
        traffic.submit(1, 1.0)
    gc.collect()
    traffic.costs_s.clear()
    for _ in range(rounds):
        traffic.now += 0.005
        traffic.end()
        while core.queued < WAITING:
            traffic.submit(1, 1.0)
    print_costs(policy, WAITING, workers, traffic.costs_s)


def growth(policy: str, jobs: int, workers: int, rounds: int) -> None:
    """Measure arrivals, reports and ends with a constant number of waiting jobs.

    A job arrives only when one has been dispatched: a policy that splits jobs ends many
    assignments per job, so the queue would otherwise grow without bound.
    """
    core = make_small_core(policy, workers, ENGINES[::2])
    traffic = Traffic(core)
    while core.queued < jobs:
        traffic.submit()
    gc.collect()
    traffic.costs_s.clear()
    for _ in range(rounds):
        traffic.now += 0.05
        while core.queued < jobs:
            traffic.submit()
        if traffic.in_flight:
            traffic.report()
        if traffic.in_flight:
            traffic.end()
    print_costs(policy, jobs, workers, traffic.costs_s)


def print_costs(policy: str, jobs: int, workers: int, costs: Sequence[float]) -> None:
    """Print a row of a table."""
    print(
        f"{policy:>10} {jobs:8,} {workers:8,} {percentile(costs, 50) * 1e3:10.3f} "
        f"{percentile(costs, 99) * 1e3:10.3f} {max(costs) * 1e3:10.3f}"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000, help="rounds per row")
    rounds = parser.parse_args().rounds
    print("one request, arrival and end together, 3 workers (µs)")
    print(f"{'policy':>10} {'p50':>10} {'p99':>10}")
    for policy in POLICIES:
        requests(policy, 10 * rounds)
    heading = f"{'policy':>10} {'jobs':>8} {'workers':>8} {'p50':>10} {'p99':>10} {'max':>10}"
    print(f"\nevents while requests wait (ms)\n{heading}")
    for policy in (*POLICIES, "edf"):
        for workers in (1, 3, 8):
            overload(policy, workers, rounds)
    print(f"\nevents while jobs wait (ms)\n{heading}")
    for policy in POLICIES:
        for jobs, workers in ((24, 3), (100, 10), (1_000, 100), (10_000, 1_000)):
            growth(policy, jobs, workers, rounds)


if __name__ == "__main__":
    main()
