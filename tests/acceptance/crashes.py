"""Kill gateway and agents at random; check that no accepted query is lost or recorded twice.

    python tests/acceptance/crashes.py --kills 200 --jobs 2000 --seed 1

Jobs are submitted concurrently, each with an idempotency key, and retried under the same key
until they are acknowledged. At the end, every acknowledged job must have succeeded, and its
executions must cover its queries exactly once.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from synergai.testing import LocalFleet
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from synergai.zoo.build import build

if TYPE_CHECKING:
    from collections.abc import Iterable

ENGINE = "onnx_identity"
AGENTS = ("left", "right")


def find_errors(job: jobs_pb2.Job, queries: int) -> list[str]:
    """Return the errors of a finished job of `queries` queries."""
    found = []
    if job.state != jobs_pb2.JOB_STATE_SUCCEEDED:
        state = jobs_pb2.JobState.Name(job.state)
        found.append(f"{job.id}: ended as {state} {job.reason!r}, not as succeeded")
    if job.queries_done != queries:
        found.append(f"{job.id}: {job.queries_done} of {queries} queries are recorded")
    position = 0
    for execution in sorted(job.executions, key=lambda e: e.first):
        if execution.first > position:
            found.append(f"{job.id}: queries [{position}, {execution.first}) are lost")
        if execution.first < position:
            found.append(f"{job.id}: queries from {execution.first} are recorded twice")
        position = max(position, execution.first + execution.count)
    if position != queries:
        found.append(f"{job.id}: queries [{position}, {queries}) are lost")
    return found


@dataclass(slots=True)
class Submitted:
    """Acknowledged jobs: ids and numbers of queries by idempotency key."""

    jobs: dict[str, tuple[str, int]] = field(default_factory=dict)
    duplicates: list[str] = field(default_factory=list)

    def acknowledge(self, key: str, job_id: str, queries: int) -> None:
        """Record an acknowledgement; a second id under the same key is an error."""
        before = self.jobs.setdefault(key, (job_id, queries))
        if before[0] != job_id:
            self.duplicates.append(f"key {key} was given two jobs: {before[0]} and {job_id}")


def submit_all(
    address: str, sizes: Iterable[int], submitted: Submitted, pace_s: float, rng: random.Random
) -> None:
    """Submit one job per size, retrying until it is acknowledged; submit some of them twice."""
    with grpc.insecure_channel(address, options=_RECONNECT_OPTIONS) as channel:
        stub = jobs_pb2_grpc.JobsStub(channel)
        for number, queries in enumerate(sizes):
            key = f"crash-{number}"
            request = jobs_pb2.SubmitRequest(
                spec=jobs_pb2.JobSpec(engine=ENGINE, queries=queries), idempotency_key=key
            )
            submissions = 2 if rng.random() < 0.1 else 1
            while submissions:
                try:
                    job = stub.Submit(request, timeout=5.0)
                except grpc.RpcError:
                    time.sleep(0.05)
                    continue
                submitted.acknowledge(key, job.id, queries)
                submissions -= 1
            time.sleep(pace_s)


def wait_for_all(address: str, submitted: Submitted, timeout_s: float) -> list[str]:
    """Wait until every acknowledged job has finished; return the errors."""
    found = list(submitted.duplicates)
    deadline = time.monotonic() + timeout_s
    with grpc.insecure_channel(address, options=_RECONNECT_OPTIONS) as channel:
        stub = jobs_pb2_grpc.JobsStub(channel)
        for key, (job_id, queries) in submitted.jobs.items():
            while True:
                try:
                    job = stub.Get(jobs_pb2.GetRequest(job_id=job_id), timeout=5.0)
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.NOT_FOUND:
                        found.append(f"{job_id} ({key}): lost, the gateway does not know it")
                        break
                    job = None
                if job is not None and job.state >= jobs_pb2.JOB_STATE_SUCCEEDED:
                    found += find_errors(job, queries)
                    break
                if time.monotonic() > deadline:
                    found.append(f"{job_id} ({key}): stuck")
                    break
                time.sleep(0.02)
    return found


_RECONNECT_OPTIONS = [
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


def run(kills: int, jobs: int, seed: int, directory: Path) -> list[str]:
    """Run the test; return the errors."""
    rng = random.Random(seed)
    sizes = [rng.randint(1, 4000) for _ in range(jobs)]
    submitted = Submitted()
    models = directory / "models"
    build(ENGINE, models)
    with LocalFleet(directory / "run") as fleet:
        fleet.start_gateway()
        for name in AGENTS:
            fleet.start_agent(name, models=models, options=["--threads", "1"])
        fleet.wait_for_workers(len(AGENTS))
        pace_s = kills * 0.5 / jobs
        submitter = threading.Thread(
            target=submit_all,
            args=(fleet.address, sizes, submitted, pace_s, random.Random(seed + 1)),
        )
        submitter.start()
        began = time.monotonic()
        for number in range(kills):
            time.sleep(rng.expovariate(1 / 0.5))
            victim = rng.choice(("gateway", *AGENTS))
            fleet.kill(victim)
            time.sleep(rng.uniform(0.0, 0.2))
            if victim == "gateway":
                fleet.start_gateway()
            else:
                fleet.start_agent(victim, models=models, options=["--threads", "1"])
            if (number + 1) % 20 == 0:
                elapsed = time.monotonic() - began
                print(
                    f"{number + 1} kills, {len(submitted.jobs)} jobs, {elapsed:.0f} s", flush=True
                )
        submitter.join()
        found = wait_for_all(fleet.address, submitted, timeout_s=120.0 + jobs * 0.5)
    if len(submitted.jobs) != jobs:
        found.append(f"{len(submitted.jobs)} of {jobs} jobs were acknowledged")
    return found


def main() -> int:
    """Parse the command line, run, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="keep logs in this directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        found = run(arguments.kills, arguments.jobs, arguments.seed, directory)
    for line in found:
        print(line)
    print(f"{arguments.kills} kills, {arguments.jobs} jobs: {len(found)} errors")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
