"""Journals of every store, and a process that writes to one until it is killed.

python -m tests.journals DIRECTORY URL
"""

import asyncio
import itertools
import sys
import time
from pathlib import Path

from gateway.journal.journal import KEPT_JOBS, Journal
from gateway.journal.postgresql.leadership import LeaderCandidate
from gateway.journal.postgresql.store import PostgresqlStore
from synergai.domain import AssignmentId, JobId
from synergai.runtime.clock import Clock
from tests.unit.gateway.test_journal import a_record, an_execution, ended

LISTEN = "127.0.0.1:8001"
"""Address of the gateway that leads a database."""
_PART = 5
"""Queries of an assignment."""


class Journals:
    """Opens the same journal again and again, in a database of PostgreSQL if there is a URL."""

    def __init__(self, directory: Path, url: str = "") -> None:
        self._directory = directory
        self._url = url

    @property
    def arguments(self) -> list[str]:
        """Arguments of a process that writes to the journal."""
        return [str(self._directory), self._url]

    async def open(self, *, kept_jobs: int = KEPT_JOBS, clock: Clock | None = None) -> Journal:
        store = await asyncio.to_thread(self._lead, clock or Clock()) if self._url else None
        return Journal(self._directory, kept_jobs=kept_jobs, store=store)

    def _lead(self, clock: Clock) -> PostgresqlStore:
        """Lead the database, once a process that was killed leads it no longer."""
        candidate = LeaderCandidate(self._url, self._directory, clock, LISTEN)
        try:
            while (store := candidate.lead()) is None:
                time.sleep(0.02)
        except BaseException:
            candidate.close()
            raise
        return store


async def _write(journals: Journals) -> None:
    journal = await journals.open()
    numbers = itertools.count()
    await asyncio.gather(*(_follow(journal, numbers) for _ in range(4)))


async def _follow(journal: Journal, numbers: "itertools.count[int]") -> None:
    """Record jobs, one after another, and say what was acknowledged."""
    for number in numbers:
        record = a_record(f"job-{number}")
        await journal.accept(record, f"key-{record.id}")
        _say("accepted", record.id)
        for part in range(record.spec.queries // _PART):
            execution = an_execution(part * _PART, _PART)
            assignment = AssignmentId(number * 100 + part)
            await journal.record_execution(JobId(record.id), assignment, execution)
            _say("recorded", record.id, str(execution.stop))
        if number % 3:
            await journal.record_end(ended(record))
            _say("ended", record.id)


def _say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_write(Journals(Path(sys.argv[1]), sys.argv[2])))
