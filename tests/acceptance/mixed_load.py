"""Mix requests with jobs under every policy; compare with either of them alone.

    python tests/acceptance/mixed_load.py --seconds 20 --workers 1,3

Emulated engines take 20 ms per query of a job and 10 ms per request, so that neither client nor
servers are the bottleneck. Three jobs per worker, with deadlines that they meet without requests,
are submitted first; requests with a deadline of 1 s are Poisson arrivals. In a second run, the
workers are occupied by jobs that would take months.
"""

import argparse
import asyncio
import math
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from synergai import Client
from synergai.domain import EngineName, WorkerClass
from synergai.errors import SynergaiError
from synergai.scheduling.policy import POLICIES
from synergai.testing import LocalFleet
from tests.emulated_engines import write_emulated_engines

BATCH, LIVE, SLOW = EngineName("batch"), EngineName("live"), EngineName("slow")
QUERY_S = {BATCH: 0.02, LIVE: 0.01, SLOW: 2.0}
CLASS = WorkerClass("box")
DEADLINE_S = 1.0
REQUESTS_PER_S = 3.0
"""Per worker: 3 % of its time."""
MIN_GOODPUT_RATIO = 0.95
ENDLESS = 10**9


@dataclass(frozen=True, slots=True)
class Mix:
    """Results of one run.

    Attributes:
        latencies_s: latencies of the requests; infinite for a failed one.
        violated: number of jobs that missed their deadline.
        goodput: queries per second of jobs in time.
    """

    latencies_s: list[float]
    violated: int
    goodput: float

    @property
    def p99_s(self) -> float:
        """99th percentile of the request latencies."""
        if not self.latencies_s:
            return math.nan
        return sorted(self.latencies_s)[math.ceil(0.99 * len(self.latencies_s)) - 1]


async def send_requests(client: Client, per_s: float, until: float) -> list[float]:
    """Send requests in an open loop at random times; return their latencies."""
    rng = random.Random(1)
    latencies: list[float] = []

    async def send() -> None:
        began = time.perf_counter()
        try:
            await client.infer(LIVE, {"x": np.zeros(1, np.float32)}, deadline=DEADLINE_S)
        except SynergaiError:
            latencies.append(math.inf)
        else:
            latencies.append(time.perf_counter() - began)

    async with asyncio.TaskGroup() as group:
        while time.perf_counter() < until:
            group.create_task(send())
            await asyncio.sleep(rng.expovariate(per_s))
    return latencies


async def run_mix(address: str, workers: int, seconds: float, *, jobs: bool, requests: bool) -> Mix:
    """Run jobs, requests, or both, for about `seconds`."""
    async with Client(address) as client:
        # Load the engines before the measurement.
        await asyncio.gather(client.load(BATCH), client.load(LIVE))
        began = time.perf_counter()
        queries = round(seconds / 4 / QUERY_S[BATCH])
        handles = [
            await client.submit(BATCH, queries=queries, qos=1.5 * seconds)
            for _ in range(3 * workers if jobs else 0)
        ]
        latencies: list[float] = []
        if requests:
            per_s = REQUESTS_PER_S * workers
            latencies = await send_requests(client, per_s, began + 0.7 * seconds)
        finished = [await handle.wait() for handle in handles]
    good = sum(status.spec.queries for status in finished if not status.violated)
    last = max((s.finished_at for s in finished if s.finished_at is not None), default=None)
    first = min((status.submitted_at for status in finished), default=None)
    span_s = (last - first).total_seconds() if last is not None and first is not None else 1.0
    return Mix(latencies, sum(status.violated for status in finished), good / span_s)


async def run_with_endless_jobs(address: str, workers: int, seconds: float) -> Mix:
    """Send requests while jobs without an end occupy the workers."""
    async with Client(address) as client:
        await asyncio.gather(client.load(BATCH), client.load(LIVE))
        jobs = [await client.submit(BATCH, queries=ENDLESS) for _ in range(workers)]
        per_s = REQUESTS_PER_S * workers
        latencies = await send_requests(client, per_s, time.perf_counter() + seconds)
        for job in jobs:
            await job.cancel()
    return Mix(latencies, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of one policy with one number of workers."""

    policy: str
    workers: int
    requests_alone: Mix
    jobs_alone: Mix
    mixed: Mix
    endless: Mix

    @property
    def limit_s(self) -> float:
        """Limit on the p99 latency: two of the longest queries, and the gateway's overhead."""
        overhead_s = max(0.0, self.requests_alone.p99_s - QUERY_S[LIVE])
        return 2 * QUERY_S[BATCH] + overhead_s

    @property
    def errors(self) -> list[str]:
        """Descriptions of all missed targets."""
        found = []
        for name, mix in (("with jobs", self.mixed), ("with endless jobs", self.endless)):
            if not mix.p99_s <= self.limit_s:
                found.append(f"request p99 {name} {mix.p99_s:.3f} s > {self.limit_s:.3f} s")
        if self.mixed.violated > self.jobs_alone.violated:
            found.append(f"{self.mixed.violated} jobs violated")
        if self.mixed.goodput < MIN_GOODPUT_RATIO * self.jobs_alone.goodput:
            found.append(f"job goodput {self.goodput_ratio:.1%} of jobs alone")
        return found

    @property
    def goodput_ratio(self) -> float:
        """Goodput of the jobs, relative to that without requests."""
        return self.mixed.goodput / self.jobs_alone.goodput

    def row(self) -> str:
        """Return the comparison as a row of the table."""
        return (
            f"{self.policy:10} {self.workers:7} {self.requests_alone.p99_s * 1e3:9.1f} "
            f"{self.limit_s * 1e3:8.1f} {self.mixed.p99_s * 1e3:8.1f} "
            f"{self.endless.p99_s * 1e3:9.1f} {self.mixed.violated:8} {self.goodput_ratio:8.1%}  "
            f"{'; '.join(self.errors) or 'ok'}"
        )


HEADER = "policy     workers  alone ms limit ms mixed ms endless ms violated  goodput"


async def compare(policy: str, workers: int, seconds: float) -> Comparison:
    """Run all mixes of one policy on a new fleet."""
    with tempfile.TemporaryDirectory(prefix="synergai-mixed-") as name:
        directory = Path(name)
        models, dictionary = write_emulated_engines(directory, QUERY_S, CLASS)
        with LocalFleet(directory / "fleet") as fleet:
            fleet.start_gateway(["--policy", policy, "--dictionary", str(dictionary)])
            for number in range(workers):
                options = ["--threads", "1"]
                fleet.start_agent(
                    f"box-{number}", models=models, worker_class=CLASS, options=options
                )
            fleet.wait_for_workers(workers)

            async def run(*, jobs: bool, requests: bool) -> Mix:
                return await run_mix(fleet.address, workers, seconds, jobs=jobs, requests=requests)

            return Comparison(
                policy,
                workers,
                requests_alone=await run(jobs=False, requests=True),
                jobs_alone=await run(jobs=True, requests=False),
                mixed=await run(jobs=True, requests=True),
                endless=await run_with_endless_jobs(fleet.address, workers, seconds / 2),
            )


def main() -> int:
    """Parse the command line, run, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--workers", default="1,3")
    parser.add_argument("--policies", default=",".join(POLICIES.names()))
    arguments = parser.parse_args()
    policies = arguments.policies.split(",")
    fleets = [int(number) for number in arguments.workers.split(",")]
    # A single event loop, because grpc.aio supports only one per process.
    return asyncio.run(compare_all(policies, fleets, arguments.seconds))


async def compare_all(policies: list[str], fleets: list[int], seconds: float) -> int:
    """Print a row per policy and number of workers; return 1 if any target is missed."""
    print(HEADER, flush=True)
    failed = False
    for workers in fleets:
        for policy in policies:
            result = await compare(policy, workers, seconds)
            print(result.row(), flush=True)
            failed |= bool(result.errors)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
