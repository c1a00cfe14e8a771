"""What a decision of the scheduling core costs, and how that grows with jobs and workers.

Run with ``python benchmarks/scheduling.py``. Three tables:

* requests: a single request on a small fleet, from its arrival to its end;
* decisions: 24 jobs that wait for 3 workers;
* growth: events on fleets of up to 1,000 busy workers with up to 10,000 waiting jobs.
"""

from __future__ import annotations

import argparse
import gc
import random
from time import thread_time
from typing import TYPE_CHECKING

from synergai.domain import (
    Configuration,
    EngineName,
    Job,
    JobId,
    Outcome,
    Session,
    WorkerClass,
    WorkerId,
)
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from synergai.scheduling.core import SchedulerCore
from synergai.scheduling.events import (
    AssignmentEnded,
    Dispatch,
    JobArrived,
    QueriesDone,
    SchedulingSettings,
    Stop,
    Worker,
    WorkerJoined,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.scheduling.events import Assignment, Command, Event

ENGINES = [EngineName(f"engine-{number}") for number in range(12)]
CLASSES = {WorkerClass("server"): 100.0, WorkerClass("agx"): 30.0, WorkerClass("nx"): 20.0}
CONFIGURATION = Configuration(4)
POLICIES = ("synergai", "malleable")


def a_core(policy: str, workers: int) -> SchedulerCore:
    """A core with a fleet of all classes, its sessions warm."""
    dictionary = ConfigurationDictionary(
        ProfileEntry(
            engine=engine,
            worker_class=name,
            configuration=CONFIGURATION,
            qps=qps / (1 + number / 4),
            model_load_s=10.0,
        )
        for number, engine in enumerate(ENGINES)
        for name, qps in CLASSES.items()
    )
    core = SchedulerCore(SchedulingSettings(policy=policy), dictionary)
    names = list(CLASSES)
    for number in range(workers):
        worker = Worker(
            id=WorkerId(f"worker-{number}"),
            worker_class=names[number % len(names)],
            engines=frozenset(ENGINES),
            configurations=(CONFIGURATION,),
            sessions=frozenset(Session(engine, CONFIGURATION) for engine in ENGINES[::2]),
        )
        core.handle(WorkerJoined(worker), 0.0)
    return core


class Traffic:
    """Makes events for a core, and follows what it answers.

    Attributes:
        costs_s: CPU time that each event took, so that other processes do not count.
    """

    def __init__(self, core: SchedulerCore, seed: int = 1) -> None:
        self.core = core
        self.now = 0.0
        self.costs_s: list[float] = []
        self.out: dict[int, Assignment] = {}
        self._random = random.Random(seed)
        self._jobs = 0

    def tell(self, event: Event) -> None:
        """Tell the core, and time it together with the question when to wake up."""
        began = thread_time()
        commands = self.core.handle(event, self.now)
        self.core.wakeup()
        self.costs_s.append(thread_time() - began)
        self._follow(commands)

    def _follow(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Dispatch(assignment):
                    self.out[assignment.id] = assignment
                case Stop(assignment_id):
                    del self.out[assignment_id]
                    ended = AssignmentEnded(assignment_id, 0, Outcome.STOPPED)
                    self._follow(self.core.handle(ended, self.now))

    def arrive(self, queries: int | None = None, budget_s: float | None = None) -> None:
        """A job comes."""
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
        self.tell(JobArrived(job, ready=queries))

    def report(self) -> None:
        """A worker is half through."""
        assignment = self._random.choice(list(self.out.values()))
        self.tell(QueriesDone(assignment.id, assignment.count // 2))

    def end(self) -> None:
        """A worker is through."""
        assignment_id = self._random.choice(list(self.out))
        assignment = self.out.pop(assignment_id)
        self.tell(AssignmentEnded(assignment.id, assignment.count, Outcome.COMPLETED))


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


def requests(policy: str, count: int) -> None:
    """Single requests, one after the other, on three workers."""
    core = a_core(policy, 3)
    traffic = Traffic(core)
    for _ in range(200):
        traffic.arrive(1, 1.0)
        traffic.end()
    traffic.costs_s.clear()
    for _ in range(count):
        traffic.now += 0.001
        traffic.arrive(1, 1.0)
        traffic.end()
    pairs = [a + b for a, b in zip(*[iter(traffic.costs_s)] * 2, strict=True)]
    print(f"{policy:>10} {percentile(pairs, 50) * 1e6:10.1f} {percentile(pairs, 99) * 1e6:10.1f}")


def growth(policy: str, jobs: int, workers: int, rounds: int) -> None:
    """Arrivals, reports and ends while so many jobs wait for so many busy workers.

    A job comes only when one has gone: a policy that splits jobs ends many assignments for each
    job, and would have more and more jobs waiting otherwise.
    """
    core = a_core(policy, workers)
    traffic = Traffic(core)
    while core.queued < jobs:
        traffic.arrive()
    gc.collect()
    traffic.costs_s.clear()
    for _ in range(rounds):
        traffic.now += 0.05
        while core.queued < jobs:
            traffic.arrive()
        if traffic.out:
            traffic.report()
        if traffic.out:
            traffic.end()
    costs = traffic.costs_s
    print(
        f"{policy:>10} {jobs:8,} {workers:8,} {percentile(costs, 50) * 1e3:10.3f} "
        f"{percentile(costs, 99) * 1e3:10.3f} {max(costs) * 1e3:10.3f}"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000, help="events per figure, in thousands")
    rounds = parser.parse_args().rounds
    print("one request, arrival and end together, 3 workers (µs)")
    print(f"{'policy':>10} {'p50':>10} {'p99':>10}")
    for policy in POLICIES:
        requests(policy, 10 * rounds)
    print("\nevents while jobs wait (ms)")
    print(f"{'policy':>10} {'jobs':>8} {'workers':>8} {'p50':>10} {'p99':>10} {'max':>10}")
    for policy in POLICIES:
        for jobs, workers in ((24, 3), (100, 10), (1_000, 100), (10_000, 1_000)):
            growth(policy, jobs, workers, rounds)


if __name__ == "__main__":
    main()
