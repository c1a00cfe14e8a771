"""Two jobs on two places that slow each other down: ``python -m benchmarks.contended_places``.

In virtual time, with drawn slow-downs of each pair of engines. The scheduling core learns them from
the progress of its own plans. Each case compares its plan with the two jobs at once, each on a
place of its own, and with one after the other in both orders. The better one has the lower mean
completion time.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import (
    AssignmentEnded,
    Dispatch,
    JobArrived,
    QueriesDone,
    Stop,
    Worker,
    WorkerJoined,
)
from synergai.core.scheduling.policies.malleable.contended import Contended, play
from synergai.core.scheduling.policies.malleable.planner import Problem
from synergai.core.scheduling.settings import SchedulingSettings
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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.core.scheduling.events import Assignment, Command

ENGINES: Final = (EngineName("a"), EngineName("b"))
BUSY: Final = EngineName("busy")
QPS: Final = 100.0
REPORT_S: Final = 0.05
LEARNED: Final = 3
"""Pairs of jobs of a case that run before the one that counts."""


@dataclass(slots=True)
class Run:
    """An assignment as it runs."""

    assignment: Assignment
    done: float = 0.0
    stops: bool = False


class Machine:
    """Two places, whose engines take `slowdowns` times as long at the same time."""

    def __init__(self, slowdowns: np.ndarray) -> None:
        self._slowdowns = slowdowns
        entries = [
            ProfileEntry(
                engine=engine,
                worker_class=WorkerClass("box"),
                configuration=Configuration(1),
                qps=QPS,
            )
            for engine in (*ENGINES, BUSY)
        ]
        self._core = SchedulerCore(SchedulingSettings(), ConfigurationDictionary(entries))
        self.now = 0.0
        self._numbers = count()
        self._runs: dict[WorkerId, list[Run]] = {}
        for place in range(2):
            worker = Worker(
                id=WorkerId(f"box.{place}"),
                worker_class=WorkerClass("box"),
                engines=frozenset((*ENGINES, BUSY)),
                configurations=(Configuration(1),),
                sessions=frozenset(Session(each, Configuration(1)) for each in (*ENGINES, BUSY)),
                machine="box",
            )
            self._runs[worker.id] = []
            self._obey(self._core.handle(WorkerJoined(worker), 0.0))

    def run(self, queries: tuple[int, int]) -> float:
        """Run a job of each engine, which arrive while both places are busy.

        Return the mean completion time from when the places are free.
        """
        self._submit(BUSY, 20)
        left = {
            self._submit(engine, number): float(number)
            for engine, number in zip(ENGINES, queries, strict=True)
        }
        begin, ended = 0.0, list[float]()
        while left or any(self._runs.values()):
            for run, new in self._advance():
                job = run.assignment.job_id
                if run.assignment.engine == BUSY:
                    begin = self.now
                elif job in left:
                    left[job] -= new
                    if left[job] < 0.5:
                        ended.append(self.now)
                        del left[job]
            self._report()
        return float(np.mean(ended)) - begin

    def _submit(self, engine: EngineName, queries: int) -> JobId:
        job = Job(
            id=JobId(f"job-{next(self._numbers)}"),
            engine=engine,
            queries=queries,
            arrival=self.now,
        )
        self._obey(self._core.handle(JobArrived(job, queries), self.now))
        return job.id

    def _advance(self) -> list[tuple[Run, float]]:
        """Let time pass; return what runs, with the queries that it completed."""
        heads = {place: runs[0] for place, runs in self._runs.items() if runs}
        self.now += REPORT_S
        completed = []
        for place, run in heads.items():
            slowdown = 1.0
            for other, beside in heads.items():
                pair = run.assignment.engine, beside.assignment.engine
                if other != place and BUSY not in pair:
                    slowdown = self._slowdowns[tuple(map(ENGINES.index, pair))]
            new = min(REPORT_S * QPS / slowdown, run.assignment.count - run.done)
            run.done += new
            completed.append((run, new))
        return completed

    def _report(self) -> None:
        for runs in list(self._runs.values()):
            if not runs:
                continue
            run = runs[0]
            assignment, done = run.assignment, int(run.done + 1e-6)
            if done == assignment.count or run.stops:
                runs.remove(run)
                outcome = Outcome.COMPLETED if done == assignment.count else Outcome.STOPPED
                event: AssignmentEnded | QueriesDone = AssignmentEnded(assignment.id, done, outcome)
            else:
                event = QueriesDone(assignment.id, done)
            self._obey(self._core.handle(event, self.now))

    def _obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Dispatch):
                self._runs[command.assignment.worker_id].append(Run(command.assignment))
            elif isinstance(command, Stop):
                for run in self._runs[command.worker_id]:
                    run.stops |= run.assignment.id == command.assignment_id


def alternatives(slowdowns: np.ndarray, queries: tuple[int, int]) -> tuple[float, float]:
    """Return the mean completion times at once, and one after the other in the better order.

    One after the other, each job runs on the number of places on which it is faster.
    """
    problem = Problem(
        queries=np.array(queries, float),
        deadlines=np.full(2, np.inf),
        importance=np.ones(2),
        ready=np.zeros(2),
        setup=np.zeros((2, 2)),
        rates=np.full((2, 2), QPS),
        saved=np.zeros((2, 2)),
        not_before=np.zeros(2),
        typical_s=1.0,
    )
    contended = Contended(
        slowdowns=slowdowns,
        mates=[[1], [0]],
        running={},
        deadlines=problem.deadlines,
        importance=problem.importance,
        not_before=problem.not_before,
    )
    at_once, _, _ = play(problem, contended, (0, 1), [[True, False], [False, True]])
    alone = np.array(queries) / QPS * np.minimum(1.0, slowdowns.diagonal() / 2)
    return float(at_once.mean()), float(alone.min() + alone.sum()) / 2


def main() -> None:
    """Run drawn cases."""
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    draw = random.Random(5)
    ratios = []
    for number in range(1, cases + 1):
        slowdowns = np.array([[draw.uniform(1, 2.5) for _ in ENGINES] for _ in ENGINES])
        queries = draw.randrange(200, 1000), draw.randrange(200, 1000)
        machine = Machine(slowdowns)
        for _ in range(LEARNED):
            machine.run(queries)
        planned_s = machine.run(queries)
        at_once_s, in_turn_s = alternatives(slowdowns, queries)
        ratios.append(planned_s / min(at_once_s, in_turn_s))
        print(
            f"{number:3} {queries[0]:4} and {queries[1]:4} queries, slow-downs "
            f"{np.array2string(slowdowns.round(2).ravel())}: at once {at_once_s:5.2f} s, in turn "
            f"{in_turn_s:5.2f} s; planned {planned_s:5.2f} s"
        )
    print(
        f"as fast as the better one, or 5 % slower at most, in {sum(np.array(ratios) <= 1.05)} of "
        f"{cases} cases; {np.mean(ratios):.3f} times its time on average, at most {max(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
