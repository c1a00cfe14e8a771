"""Results of a job, fetched into the shards of a directory."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import typer

from synergai.cli.output import count_progress, print_json
from synergai.data.result_directory import DirectoryMarker, ResultDirectory, read_results
from synergai.runtime.tasks import run_to_end
from synergai.runtime.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from synergai.client.jobs import JobHandle, ResultBatch
    from synergai.data.items import JobResult
    from synergai.jobs import JobStatus

_SHARD_RESULTS: Final = 10_000
_SHARD_BYTES: Final = 64 << 20
_SHARD_S: Final = 30.0
"""A shard is written once it has so many results or bytes, or a result has waited for so long."""
_MAX_LISTED: Final = 20
"""Failed inputs that a command lists; the shards have all."""


class FailureList:
    """Failed inputs: their number, and the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[tuple[int, str, str]] = []

    @classmethod
    def of(cls, directory: ResultDirectory) -> FailureList:
        found = cls()
        for _, result in read_results(directory.path):
            if result.error:
                found.add(result.index, result.name, result.error)
        return found

    def add(self, index: int, name: str, reason: str) -> None:
        """Add a failed input."""
        self.count += 1
        if len(self.first) < _MAX_LISTED:
            self.first.append((index, name, reason))

    def lines(self) -> list[str]:
        """Return a line for each listed input, and one for the others."""
        lines = [f"{name}: {reason}" for _, name, reason in self.first]
        if more := self.count - len(self.first):
            lines.append(f"and {more:,} more")
        return lines

    def as_json(self) -> list[dict[str, Any]]:
        """Return the listed inputs as objects."""
        return [{"index": i, "name": name, "reason": text} for i, name, text in self.first]

    def print(self, *, where: str = "") -> None:
        """Print the failed inputs, and where they were found, on standard error."""
        if self.count:
            found = f", found {where}" if where else ""
            typer.echo(f"{counted(self.count, 'input')} failed{found}:", err=True)
        for line in self.lines():
            typer.echo(f"  {printable(line)}", err=True)


async def fetch_into(job: JobHandle, output: Path, *, follow: bool, as_json: bool) -> None:
    """Fetch results into a directory, and print what there is and which inputs failed."""
    failures = FailureList()
    with ResultDirectory(output) as directory:
        status = await job.status()
        directory.claim(DirectoryMarker(job.id, status.spec.engine))
        before = directory.total
        if not has_all(directory, status):
            with count_progress() as progress:
                task = progress.add_task("fetching results", total=status.spec.queries)
                await fetch_results(
                    job,
                    directory,
                    follow=follow,
                    failures=failures,
                    on_progress=lambda done: progress.update(task, completed=done),
                )
        if as_json:
            facts = {"job": job.id, "directory": str(output), "results": directory.total}
            print_json({**facts, "new": directory.total - before, "failures": failures.as_json()})
        else:
            new = directory.total - before
            typer.echo(f"{counted(directory.total, 'result')} in {output} ({new:,} new)")
    if not as_json:
        failures.print()
    if follow:
        (await job.status()).raise_unless_succeeded()


def has_all(directory: ResultDirectory, status: JobStatus) -> bool:
    """Return whether a directory has the result of every input.

    Nothing is left to fetch then, also if the gateway no longer keeps the results.
    """
    return status.state.ended and directory.total >= status.spec.queries


async def fetch_results(
    job: JobHandle,
    directory: ResultDirectory,
    *,
    follow: bool,
    failures: FailureList,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the results that the directory does not have yet, shard by shard."""
    pending = _Pending(directory)
    on_progress(directory.total)
    async with aclosing(job.result_batches(cursor=directory.cursor, follow=follow)) as batches:
        async for batch in batches:
            pending.add(batch)
            for result in batch.results:
                if result.error:
                    failures.add(result.index, result.name, result.error)
            if pending.is_due():
                await run_to_end(asyncio.to_thread(pending.write))
                on_progress(directory.total)
        await run_to_end(asyncio.to_thread(pending.write))
        on_progress(directory.total)


class _Pending:
    """Results that are in no shard yet."""

    def __init__(self, directory: ResultDirectory) -> None:
        self._directory = directory
        self._results: list[JobResult] = []
        self._bytes = 0
        self._cursor = directory.cursor
        self._since = 0.0

    def add(self, batch: ResultBatch) -> None:
        if not self._results:
            self._since = time.monotonic()
        self._results += batch.results
        self._bytes += sum(
            array.nbytes for result in batch.results for array in result.outputs.values()
        )
        self._cursor = batch.cursor

    def is_due(self) -> bool:
        return (
            len(self._results) >= _SHARD_RESULTS
            or self._bytes >= _SHARD_BYTES
            or time.monotonic() - self._since >= _SHARD_S
        )

    def write(self) -> None:
        """Write a shard; nothing without results."""
        if self._results:
            self._directory.write(self._results, self._cursor)
            self._results, self._bytes = [], 0
