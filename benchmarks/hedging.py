"""Hedging: latency and extra work with a worker that is sometimes slow, with and without copies.

Run with ``python benchmarks/hedging.py``. Requests arrive at random at three workers, of which one
takes ten times as long for one query in a hundred. The scheduling core runs in virtual time, as in
the gateway; the workers complete a query that was stopped after it began.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import deque
from typing import NamedTuple

from benchmarks.timed_core import CONFIGURATION
from synergai.domain import EngineName, Job, JobId, Outcome, Session, WorkerClass, WorkerId
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from synergai.scheduling.core import SchedulerCore
from synergai.scheduling.events import (
    Assignment,
    AssignmentEnded,
    Dispatch,
    Event,
    Finish,
    JobArrived,
    Stop,
    TimePassed,
    Worker,
    WorkerJoined,
)
from synergai.scheduling.settings import SchedulingSettings

ENGINE = EngineName("engine")
CLASS = WorkerClass("server")
WORKERS = tuple(WorkerId(f"worker-{number}") for number in range(3))
QUERY_S = 0.02
SPREAD = 0.1
"""Relative standard deviation of the usual time of a query."""
SLOW_SHARE = 0.01
SLOWER = 10.0


class Figures(NamedTuple):
    """Result of a run.

    Attributes:
        latencies_s: seconds from arrival to answer, ascending.
        sent: number of copies.
        won: number of copies that answered first.
        extra: time spent on queries that were answered before, relative to the time of the others.
    """

    latencies_s: list[float]
    sent: int
    won: int
    extra: float

    def percentile(self, share: float) -> float:
        """Return the latency that a share of the requests does not exceed."""
        return self.latencies_s[min(int(share * len(self.latencies_s)), len(self.latencies_s) - 1)]


class Run:
    """Requests, workers and the core in virtual time.

    Args:
        share: the core's `hedge_share`.
        load: part of the workers' time that the requests need.
        requests: number of requests.
        seed: seed of arrivals and query times.
    """

    def __init__(self, share: float, load: float, requests: int, seed: int = 1) -> None:
        arrivals, self._times = random.Random(seed), random.Random(seed + 1)
        entry = ProfileEntry(
            engine=ENGINE, worker_class=CLASS, configuration=CONFIGURATION, qps=1.0 / QUERY_S
        )
        settings = SchedulingSettings(hedge_share=share)
        self.core = SchedulerCore(settings, ConfigurationDictionary([entry]))
        self._now = 0.0
        self._timers: list[tuple[float, int, Event | WorkerId]] = []
        self._timer = 0
        self._queues: dict[WorkerId, deque[Assignment]] = {name: deque() for name in WORKERS}
        self._arrived: dict[JobId, float] = {}
        self._latencies_s: list[float] = []
        self._runs_s: dict[WorkerId, float] = {}
        self._useful_s = self._extra_s = 0.0
        for name in WORKERS:
            self._handle(WorkerJoined(_make_worker(name)))
        at = 0.0
        for number in range(requests):
            at += arrivals.expovariate(load * len(WORKERS) / QUERY_S)
            job = Job(
                id=JobId(str(number)),
                engine=ENGINE,
                queries=1,
                arrival=at,
                perishable=True,
                with_tensors=True,
            )
            self._arrived[job.id] = at
            self._call_at(at, JobArrived(job, 1))

    def run(self) -> Figures:
        """Run to the end."""
        while self._timers:
            wakeup = self.core.wakeup()
            if wakeup is not None and wakeup < self._timers[0][0]:
                self._now = wakeup
                self._handle(TimePassed())
                continue
            self._now, _, due = heapq.heappop(self._timers)
            if isinstance(due, str):
                self._complete(due)
            else:
                self._handle(due)
        extra = self._extra_s / self._useful_s
        return Figures(sorted(self._latencies_s), *self.core.hedges, extra)

    def _call_at(self, at: float, due: Event | WorkerId) -> None:
        self._timer += 1
        heapq.heappush(self._timers, (at, self._timer, due))

    def _handle(self, event: Event) -> None:
        for command in self.core.handle(event, self._now):
            match command:
                case Dispatch(assignment):
                    queue = self._queues[assignment.worker_id]
                    queue.append(assignment)
                    if len(queue) == 1:
                        self._begin(assignment.worker_id)
                case Stop(assignment_id, worker_id):
                    self._stop(assignment_id, worker_id)
                case Finish(job_id):
                    self._latencies_s.append(self._now - self._arrived.pop(job_id))

    def _begin(self, worker_id: WorkerId) -> None:
        seconds = max(QUERY_S / 2, self._times.gauss(QUERY_S, SPREAD * QUERY_S))
        if worker_id == WORKERS[0] and self._times.random() < SLOW_SHARE:
            seconds *= SLOWER
        self._runs_s[worker_id] = seconds
        self._call_at(self._now + seconds, worker_id)

    def _complete(self, worker_id: WorkerId) -> None:
        queue = self._queues[worker_id]
        assignment = queue.popleft()
        if assignment.job_id in self._arrived:
            self._useful_s += self._runs_s[worker_id]
        else:
            self._extra_s += self._runs_s[worker_id]
        if queue:
            self._begin(worker_id)
        self._handle(AssignmentEnded(assignment.id, 1, Outcome.COMPLETED))

    def _stop(self, assignment_id: int, worker_id: WorkerId) -> None:
        """Remove an assignment that has not begun; one that runs completes."""
        queue = self._queues[worker_id]
        for assignment in list(queue)[1:]:
            if assignment.id == assignment_id:
                queue.remove(assignment)
                self._call_at(self._now, AssignmentEnded(assignment.id, 0, Outcome.STOPPED))


def _make_worker(name: WorkerId) -> Worker:
    return Worker(
        id=name,
        worker_class=CLASS,
        engines=frozenset({ENGINE}),
        configurations=(CONFIGURATION,),
        sessions=frozenset({Session(ENGINE, CONFIGURATION)}),
    )


def main() -> None:
    """Print a table of latencies and extra work."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    arguments = parser.parse_args()
    print("| load | share | p50 ms | p99 ms | p99.9 ms | copies | won | extra work |")
    print("|---|---|---|---|---|---|---|---|")
    for load in (0.1, 0.3, 0.5, 0.7):
        for share in (0.0, 0.01, 0.05):
            found = Run(share, load, arguments.requests).run()
            times = " | ".join(f"{1e3 * found.percentile(p):.0f}" for p in (0.5, 0.99, 0.999))
            copies = found.sent / arguments.requests
            won = found.won / max(found.sent, 1)
            print(
                f"| {load:.0%} | {share:.0%} | {times} | {copies:.2%} | {won:.0%} "
                f"| {found.extra:.2%} |"
            )


if __name__ == "__main__":
    main()
