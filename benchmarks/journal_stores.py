"""Jobs that the journal accepts per second, and the time that one waits, in SQLite and PostgreSQL.

    python benchmarks/journal_stores.py

Each of the writers submits a job, with an idempotency key, once its last one is durable. Both
databases are on the same disk, and PostgreSQL answers on loopback: over a network, each group of
jobs waits for some round trips more. Rounds of both alternate; the tables have medians. In the
second one, PostgreSQL waits for a standby on the same machine as well.
"""

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.journal.job_record import RecordedJob
from gateway.journal.journal import Journal
from gateway.journal.postgresql.leadership import LeaderCandidate
from synergai.domain import EngineName, JobId
from synergai.jobs import JobSpec, JobState
from synergai.runtime.clock import Clock
from tests.postgresql import find_programs, running_server, synchronous_standby

WRITERS: Final = (1, 64, 512)
ROUNDS: Final = 5
ROUND_S: Final = 1.0
_SPEC: Final = JobSpec(engine=EngineName("echo"), queries=20)


async def measure(journal: Journal, writers: int, new_id: Callable[[], str]) -> tuple[float, float]:
    """Return the jobs accepted per second, and the median seconds until one was."""
    waited: list[float] = []
    begun = time.perf_counter()

    async def write() -> None:
        now = time.perf_counter()
        while now < begun + ROUND_S:
            job_id = new_id()
            record = RecordedJob(
                id=JobId(job_id), spec=_SPEC, state=JobState.QUEUED, submitted_at=100.0
            )
            before = now
            await journal.accept(record, job_id)
            now = time.perf_counter()
            waited.append(now - before)

    await asyncio.gather(*(write() for _ in range(writers)))
    return len(waited) / (time.perf_counter() - begun), statistics.median(waited)


async def run(url: str, directory: Path, numbers: "itertools.count[int]") -> None:
    candidate = await asyncio.to_thread(LeaderCandidate, url, directory / "shared", Clock(), "")
    journals = {
        "SQLite": Journal(directory / "own"),
        "PostgreSQL": Journal(directory / "shared", store=await asyncio.to_thread(candidate.lead)),
    }
    print(f"{'writers':>8}{'store':>12}{'jobs/s':>10}{'p50 ms':>10}{'ratio':>8}")
    for writers in WRITERS:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in journals}
        for _ in range(ROUNDS):
            for name, journal in journals.items():
                found[name].append(await measure(journal, writers, lambda: str(next(numbers))))
        rates = {name: statistics.median(rate for rate, _ in each) for name, each in found.items()}
        for name, each in found.items():
            wait_ms = 1e3 * statistics.median(wait for _, wait in each)
            ratio = rates[name] / rates["SQLite"]
            print(f"{writers:>8}{name:>12}{rates[name]:>10,.0f}{wait_ms:>10.2f}{ratio:>8.2f}")
    for journal in journals.values():
        await journal.close()


def main() -> None:
    programs = find_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed: neither pg_ctl nor /usr/lib/postgresql")
    numbers = itertools.count()
    with running_server(programs) as server, tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(server.url, Path(directory) / "alone", numbers))
        with synchronous_standby(programs, server):
            print("with a synchronous standby")
            asyncio.run(run(server.url, Path(directory) / "standby", numbers))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # for --help
    main()
