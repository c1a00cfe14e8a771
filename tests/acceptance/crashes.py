"""Kill gateway, agents and engine hosts; check that no accepted query is lost or recorded twice.

    python tests/acceptance/crashes.py --kills 1000 --jobs 100000 --seed 1    # about half an hour
    python tests/acceptance/crashes.py --kills 1000 --jobs 1700 --work stages # an engine in stages
    python tests/acceptance/crashes.py --kills 40 --jobs 800 --work images    # uploads of images
    python tests/acceptance/crashes.py --kills 200 --jobs 1300 --work deployments

Several clients submit jobs meanwhile, most of a few queries and some of many, each with an
idempotency key, and retry under the same key until the job is acknowledged. At the end, every
acknowledged job must have succeeded, its executions must cover its queries exactly once, and the
journal must have no other jobs.

With stages, agents pull tensors from each other, or get them through the gateway. Jobs have inputs
of their own, and clients send requests as well. All answers must be those of the whole engine.
Over images, uploads are interrupted and continue, and results are read while jobs run.
With deployments, the gateway cuts the engine into stages and deploys them, again and again as
versions and workers come and go, and a minute after the last change, no stage is left over.
"""

import argparse
import collections
import contextlib
import os
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from unittest import mock

import grpc

from synergai import SyncClient
from synergai.errors import SynergaiError
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from tests.acceptance.crash_work import ImageWork, StagedWork, WholeWork
from tests.acceptance.deployed_work import DeployedWork
from tests.acceptance.fleets import KilledFleet
from tests.acceptance.processes import find_bugs
from tests.acceptance.scripts import verdict

WORK: Final = {
    "samples": WholeWork,
    "stages": StagedWork,
    "images": ImageWork,
    "deployments": DeployedWork,
}
CLIENTS: Final = 4
SHORT_QUERIES: Final = 8
LONG_SHARE: Final = 0.02
_VERIFIERS: Final = 8


def find_errors(job: jobs_pb2.Job, queries: int) -> list[str]:
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
class Progress:
    """Numbers of kills and jobs, by which clients keep pace with the kills."""

    kills: int
    jobs: int
    killed: collections.Counter[str] = field(default_factory=collections.Counter)
    acknowledged: dict[str, str] = field(default_factory=dict)
    retried: int = 0
    duplicates: list[str] = field(default_factory=list)

    def is_ahead(self) -> bool:
        """Return whether a larger share of the jobs is submitted than of the kills is done."""
        return len(self.acknowledged) * self.kills > (self.killed.total() + 1) * self.jobs

    def acknowledge(self, key: str, job_id: str) -> None:
        """Record an acknowledgement; a second id under the same key is an error."""
        before = self.acknowledged.setdefault(key, job_id)
        if before != job_id:
            self.duplicates.append(f"key {key} was given two jobs: {before} and {job_id}")


def job_sizes(jobs: int, most: int, rng: random.Random) -> list[int]:
    """Return numbers of queries: most are small, some keep a worker busy for a while."""
    return [
        rng.randint(SHORT_QUERIES, most)
        if rng.random() < LONG_SHARE
        else rng.randint(1, SHORT_QUERIES)
        for _ in range(jobs)
    ]


def key_of(number: int) -> str:
    return f"crash-{number}"


def submit_all(
    address: str,
    work: WholeWork,
    sizes: Sequence[int],
    numbers: range,
    progress: Progress,
    rng: random.Random,
) -> None:
    """Submit jobs, retrying until they are acknowledged; submit some of them twice."""
    with SyncClient(address, attempts=1) as client:
        for number in numbers:
            while progress.is_ahead():
                time.sleep(0.01)
            submissions = 2 if rng.random() < 0.1 else 1
            while submissions:
                try:
                    job_id = work.submit(client, number, sizes[number], key_of(number))
                except SynergaiError:
                    progress.retried += 1
                    time.sleep(0.05)
                    continue
                progress.acknowledge(key_of(number), job_id)
                submissions -= 1


def kill_all(fleet: KilledFleet, work: WholeWork, progress: Progress, rng: random.Random) -> None:
    """Kill at random moments and restart what was killed."""
    victims, weights = list(work.victims), list(work.victims.values())
    began = time.monotonic()
    while progress.killed.total() < progress.kills:
        time.sleep(rng.expovariate(1 / work.pause_s))
        (victim,) = rng.choices(victims, weights)
        work.prepare_kill(fleet, victim, rng)
        if not fleet.kill(victim, rng):
            continue
        progress.killed[victim] += 1
        kills = progress.killed.total()
        if kills % 20 == 0:
            elapsed = time.monotonic() - began
            print(
                f"{kills} kills, {len(progress.acknowledged):,} jobs, {elapsed:.0f} s", flush=True
            )


def wait_for_all(
    address: str,
    work: WholeWork,
    sizes: Sequence[int],
    progress: Progress,
    timeout_s: float,
) -> tuple[list[str], int]:
    """Wait until every acknowledged job has ended.

    Returns:
        The errors, and the number of jobs that ran in several executions.
    """
    deadline = time.monotonic() + timeout_s
    resumed = 0

    def check(number: int) -> list[str]:
        nonlocal resumed
        key = key_of(number)
        if (job_id := progress.acknowledged.get(key)) is None:
            return [f"{key} was not acknowledged"]
        while True:
            job = None
            try:
                job = stub.Get(jobs_pb2.GetRequest(job_id=job_id), timeout=5.0)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    return [f"{job_id} ({key}): lost, the gateway does not know it"]
            if job is not None and job.state >= jobs_pb2.JOB_STATE_SUCCEEDED:
                resumed += len(job.executions) > 1
                found = find_errors(job, sizes[number])
                if job.state == jobs_pb2.JOB_STATE_SUCCEEDED:
                    found += work.find_wrong(client, job_id, number, sizes[number])
                return found
            if time.monotonic() > deadline:
                return [f"{job_id} ({key}): stuck"]
            time.sleep(0.05)

    with (
        grpc.insecure_channel(address) as channel,
        SyncClient(address) as client,
        ThreadPoolExecutor(_VERIFIERS) as pool,
    ):
        stub = jobs_pb2_grpc.JobsStub(channel)
        found = [line for lines in pool.map(check, range(len(sizes))) for line in lines]
    return progress.duplicates + found, resumed


def find_journal_errors(journal: Path, engine: str, jobs: int) -> list[str]:
    """Return the error if a stopped gateway's journal does not have `jobs` jobs of an engine.

    All versions count.
    """
    with contextlib.closing(sqlite3.connect(journal)) as connection:
        (recorded,) = connection.execute(
            "SELECT count(*) FROM jobs WHERE engine = ? OR engine LIKE ? || '/%'",
            (engine, engine),
        ).fetchone()
    return [] if recorded == jobs else [f"the journal has {recorded:,} jobs, not {jobs:,}"]


def run(
    kills: int,
    jobs: int,
    seed: int,
    directory: Path,
    database: str = "",
    kind: str = "samples",
) -> list[str]:
    """Run the test and print its figures; return the errors."""
    rng = random.Random(seed)
    progress, stopped = Progress(kills, jobs), threading.Event()
    began = time.monotonic()
    # The default number of ended jobs to keep is that of the full size.
    kept = mock.patch.dict(os.environ, {"SYNERGAI_GATEWAY_KEPT_JOBS": str(2 * jobs)})
    with kept, ExitStack() as ports:
        work = WORK[kind](directory / "models", ports)
        sizes = job_sizes(jobs, work.long_queries, rng)
        fleet = KilledFleet(
            directory / "run",
            work.agents,
            gateway=["--journal", database] if database else [],
            options=work.options,
            prefixes=work.prefixes,
        )
        local = ports.enter_context(fleet.local)
        fleet.start_all()
        clients = [
            threading.Thread(
                target=submit_all,
                args=(
                    local.address,
                    work,
                    sizes,
                    range(client, jobs, CLIENTS),
                    progress,
                    random.Random(seed + client),
                ),
                daemon=True,  # a failure elsewhere ends the test
            )
            for client in range(CLIENTS)
        ]
        others = work.start_requests(local.address, stopped)
        for client in clients:
            client.start()
        clients += others
        kill_all(fleet, work, progress, rng)
        stopped.set()
        for client in clients:
            client.join()
        killed_s = time.monotonic() - began
        work.end_changes(fleet)
        found, resumed = wait_for_all(
            local.address,
            work,
            sizes,
            progress,
            timeout_s=120.0 + 0.05 * sum(sizes) / SHORT_QUERIES,
        )
        found += work.find_disorder(fleet)
    found += [*work.errors, *find_bugs(local.directory), *fleet.find_leftovers()]
    if not database:
        found += find_journal_errors(local.directory / "gateway" / "journal.db", work.engine, jobs)
    victims = ", ".join(f"{name} {number}" for name, number in sorted(progress.killed.items()))
    print(
        f"{kills:,} kills ({victims}) in {killed_s:.0f} s; {jobs:,} jobs of {sum(sizes):,} "
        f"queries; {progress.retried:,} submissions repeated; {resumed:,} jobs ran in several "
        f"executions; {work.summary()}; {time.monotonic() - began:.0f} s in all"
    )
    return [f"{times} times: {each}" for each, times in collections.Counter(found).items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", choices=WORK, default="samples", help="what jobs run over")
    parser.add_argument("--directory", type=Path, help="keep logs in this directory")
    parser.add_argument("--journal", default="", help="keep the journal in this database")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        found = run(
            arguments.kills,
            arguments.jobs,
            arguments.seed,
            directory,
            arguments.journal,
            arguments.work,
        )
    return verdict(found, f"{arguments.kills} kills, {arguments.jobs} jobs: ")


if __name__ == "__main__":
    sys.exit(main())
