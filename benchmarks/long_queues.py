"""Cost of a long queue: the scheduling core's events per second, and the gateway's requests.

Run with ``python benchmarks/long_queues.py``; ``--part`` selects one of two tables:

* core: events per second of CPU time while jobs of one query wait, all for one engine or spread
  over 1,000. Jobs arrive, end and report, and single requests with deadlines run between them.
* gateway: the time of single requests to an engine while jobs of one query wait for it: none, few,
  and many. Requests run between two queries of jobs, so compare many jobs with few.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.timed_core import CONFIGURATION, TimedCore, make_core
from demo.local_fleet import LocalFleet
from profiler.zoo.recipes import build
from synergai.client.client import Client
from synergai.core.scheduling.events import JobArrived, TimePassed
from synergai.core.scheduling.policies import POLICIES
from synergai.domain import EngineName, Job, JobId, WorkerClass
from synergai.profiles.dictionary import ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

QPS = {WorkerClass("server"): 1000.0, WorkerClass("edge"): 300.0}
WORKERS = 4
FEW = 3000
"""Waiting jobs with which many are compared."""
SUBMISSIONS = 100
"""Submissions in flight."""


class Traffic(TimedCore):
    """A core with a long queue, and workers that run what it dispatches in virtual time."""

    def __init__(self, policy: str, engines: int, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._engines = [EngineName(f"engine-{number}") for number in range(engines)]
        self._jobs = 0
        entries = [
            ProfileEntry(
                engine=engine,
                worker_class=worker_class,
                configuration=CONFIGURATION,
                qps=qps,
                model_load_s=1.0,
            )
            for engine in self._engines
            for worker_class, qps in QPS.items()
        ]
        super().__init__(make_core(policy, entries, list(QPS), WORKERS, self._engines))

    def submit(self, *, is_request: bool = False) -> None:
        """Submit a job of one query, or a request; every other job has a deadline."""
        self._jobs += 1
        deadline = self.now + self._random.expovariate(1 / 60.0)
        job = Job(
            id=JobId(str(self._jobs)),
            engine=self._random.choice(self._engines),
            queries=1,
            arrival=self.now,
            deadline=deadline if is_request or self._jobs % 2 else float("inf"),
            perishable=is_request,
            with_tensors=is_request,
        )
        self.handle(JobArrived(job, ready=1))

    def end(self) -> None:
        """Complete the assignment that was dispatched first."""
        first = next(iter(self.in_flight.values()))
        self.complete(first.id, first.query_s)

    def advance(self, seconds: float) -> None:
        """Let time pass; the core is woken if it asked to be."""
        self.now += seconds
        wakeup = self.core.wakeup()
        if wakeup is not None and wakeup <= self.now:
            self.handle(TimePassed())


def core_row(policy: str, jobs: int, engines: int, rounds: int) -> float:
    """Return events per second of CPU time with `jobs` waiting."""
    traffic = Traffic(policy, engines)
    while traffic.core.queued < jobs:
        traffic.advance(1e-6)
        traffic.submit()
    gc.collect()
    gc.freeze()
    traffic.costs_s.clear()
    for number in range(rounds):
        traffic.advance(0.0004)
        traffic.submit(is_request=number % 4 == 0)
        while traffic.core.queued > jobs:
            traffic.end()
    gc.unfreeze()
    return len(traffic.costs_s) / sum(traffic.costs_s)


def core_table(policies: Sequence[str], counts: Sequence[int], rounds: int) -> None:
    """Print the core's events per second."""
    print("events per second of CPU time, by number of waiting jobs")
    print(f"{'policy':>10} {'engines':>8} " + " ".join(f"{count:>10,}" for count in counts))
    for policy in policies:
        for engines in (1, 1000):
            rates = [core_row(policy, count, engines, rounds) for count in counts]
            print(f"{policy:>10} {engines:8,} " + " ".join(f"{rate:10,.0f}" for rate in rates))


async def request_ms(client: Client, engine: EngineName, count: int) -> list[float]:
    """Return the times of single requests, one after another, sorted."""
    times: list[float] = []
    for _ in range(count):
        started = perf_counter()
        await client.infer(engine, {"x": np.zeros(1, np.float32)}, deadline=30.0)
        times.append((perf_counter() - started) * 1e3)
    return sorted(times)


async def submit_jobs(client: Client, engine: EngineName, count: int) -> None:
    """Submit jobs of one query; every other one has a deadline."""
    free = asyncio.Semaphore(SUBMISSIONS)

    async def submit(number: int) -> None:
        async with free:
            await client.submit(engine, queries=1, qos=3600.0 if number % 2 else None)

    await asyncio.gather(*map(submit, range(count)))


async def gateway_table(address: str, engine: EngineName, jobs: int, requests: int) -> None:
    """Print the times of requests while none, few and many jobs wait."""
    print("requests while jobs wait, one at a time (ms)")
    print(f"{'jobs':>10} {'p50':>10} {'p99':>10}")
    async with Client(address) as client:
        for count in (0, FEW, jobs):
            started = perf_counter()
            await submit_jobs(client, engine, count)
            times = await request_ms(client, engine, requests)
            p99 = times[int(len(times) * 0.99)]
            print(f"{count:10,} {statistics.median(times):10.2f} {p99:10.2f}", end="")
            print(f"   ({perf_counter() - started:.1f} s)")


def gateway(jobs: int, requests: int) -> None:
    """Run a gateway and an agent, and measure requests."""
    engine = EngineName("onnx_identity")
    with tempfile.TemporaryDirectory() as folder, LocalFleet(Path(folder)) as fleet:
        models = Path(folder) / "models"
        build(engine, models)
        fleet.start_gateway()
        fleet.start_agent("worker", models=models, options=("--threads", "1"))
        fleet.wait_for_workers(1)
        asyncio.run(gateway_table(fleet.address, engine, jobs, requests))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--part", choices=("core", "gateway", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=20_000, help="arrivals per figure (core)")
    parser.add_argument("--jobs", default="1000,10000,100000", help="waiting jobs (core)")
    parser.add_argument("--policies", default=",".join(POLICIES.names()), help="(core)")
    parser.add_argument("--gateway-jobs", type=int, default=40_000, help="waiting jobs (gateway)")
    parser.add_argument("--requests", type=int, default=1000, help="requests (gateway)")
    arguments = parser.parse_args()
    if arguments.part != "gateway":
        counts = [int(count) for count in arguments.jobs.split(",")]
        core_table(arguments.policies.split(","), counts, arguments.rounds)
    if arguments.part != "core":
        gateway(arguments.gateway_jobs, arguments.requests)


if __name__ == "__main__":
    main()
