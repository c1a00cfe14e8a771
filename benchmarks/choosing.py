"""CPU cost of choosing a variant, as the difference of two requests in one run.

Run with ``python -m benchmarks.choosing``. Requests for an engine with five variants, for the same
engine without the choice, and for an engine without variants take turns, each on one worker, from
arrival to end: alone, and while others wait.
"""

from __future__ import annotations

from statistics import median
from time import thread_time
from typing import Literal

from benchmarks.timed_core import TimedCore
from benchmarks.variants.simulation import profile_entries
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import JobArrived, Worker, WorkerJoined
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import (
    Configuration,
    EngineName,
    Job,
    JobId,
    Session,
    Variant,
    WorkerClass,
    WorkerId,
)
from synergai.profiles.dictionary import ConfigurationDictionary

FAMILY, PLAIN = EngineName("family"), EngineName("plain")
VARIANTS = {f"v{number}": (0.001 * 2**number, 0.8 + 0.03 * number) for number in range(5)}
ROUNDS, REQUESTS = 40, 200


def make_core(objective: Literal["accuracy", "latency"]) -> SchedulerCore:
    """Return a core with one worker that has both engines loaded, and runs one request at a time.

    Otherwise the worker would get more requests ahead if they take less time.
    """
    name = WorkerClass("server")
    entries = profile_entries({FAMILY: VARIANTS, PLAIN: {"": (0.001, 0.9)}}, name)
    settings = SchedulingSettings(objective=objective, prefetch_count=1)
    core = SchedulerCore(settings, ConfigurationDictionary(entries))
    worker = Worker(
        id=WorkerId("worker"),
        worker_class=name,
        engines=frozenset({FAMILY, PLAIN}),
        configurations=(Configuration(),),
        sessions=frozenset(Session(each.engine, each.configuration) for each in entries),
        variants={FAMILY: tuple(Variant(name=variant) for variant in VARIANTS)},
    )
    core.handle(WorkerJoined(worker), 0.0)
    return core


class Load:
    """Requests for an engine on a core of its own.

    Args:
        engine: the engine.
        objective: whether variants are chosen.
        waiting: how many requests are in the system when another one arrives.
    """

    def __init__(
        self, engine: EngineName, objective: Literal["accuracy", "latency"], waiting: int
    ) -> None:
        self._engine = engine
        self._core = TimedCore(make_core(objective))
        self._number = 0
        self._deadline_s = 0.1 + 0.01 * waiting
        for _ in range(waiting):
            self._arrive()

    def _arrive(self) -> None:
        self._number += 1
        core = self._core
        core.now += 0.005
        job = Job(
            id=JobId(str(self._number)),
            engine=self._engine,
            queries=1,
            arrival=core.now,
            deadline=core.now + self._deadline_s,
            perishable=True,
            with_tensors=True,
        )
        core.handle(JobArrived(job, ready=1))

    def cost_us(self) -> float:
        """Return the CPU time of a request from arrival to end, in microseconds."""
        began = thread_time()
        for _ in range(REQUESTS):
            self._arrive()
            first, assignment = next(iter(self._core.in_flight.items()))
            self._core.complete(first, compute_s=assignment.query_s)
        return (thread_time() - began) / REQUESTS * 1e6


def main() -> None:
    """Print the cost of a request with and without a choice, and the differences.

    The second difference is all that an engine costs in addition because it has variants.
    """
    for waiting in (0, 16):
        chosen = Load(FAMILY, "accuracy", waiting)
        fastest = Load(FAMILY, "latency", waiting)
        plain = Load(PLAIN, "latency", waiting)
        rounds = [(chosen.cost_us(), fastest.cost_us(), plain.cost_us()) for _ in range(ROUNDS)]
        costs = [median(each) for each in zip(*rounds, strict=True)]
        print(
            f"{waiting} waiting: with a choice {costs[0]:.1f} µs, "
            f"of the fastest variant {costs[1]:.1f} µs, without variants {costs[2]:.1f} µs; "
            f"choosing {median(each[0] - each[1] for each in rounds):.1f} µs, "
            f"a family {median(each[0] - each[2] for each in rounds):.1f} µs"
        )


if __name__ == "__main__":
    main()
