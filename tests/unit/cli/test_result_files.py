"""Results of a job, fetched into a directory."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import synergai
from synergai.cli import result_files
from synergai.cli.result_files import FailureList, fetch_results
from synergai.client.jobs import JobHandle, ResultBatch
from synergai.data.items import JobResult
from synergai.data.result_directory import DirectoryMarker, ResultDirectory


def a_job(*, ends: bool) -> JobHandle:
    """Return a job with five results, in batches of one, that ends after them or never."""

    async def batches(cursor: int, **_: object) -> AsyncGenerator[ResultBatch, None]:
        for index in range(cursor, 5):
            outputs: dict[str, NDArray[np.float64]] = {} if index == 3 else {"y": np.ones(1)}
            result = JobResult(index, f"{index}.jpg", outputs, "broken" if index == 3 else "")
            yield ResultBatch([result], index + 1)
        if not ends:
            await asyncio.Event().wait()

    return cast("JobHandle", SimpleNamespace(id="job", result_batches=batches))


async def fetch(
    job: JobHandle,
    path: Path,
    failures: FailureList | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    with ResultDirectory(path) as directory:
        directory.claim(DirectoryMarker("job"))
        await fetch_results(
            job,
            directory,
            follow=True,
            failures=FailureList() if failures is None else failures,
            on_progress=on_progress,
        )


def shards(path: Path) -> list[str]:
    return sorted(each.name for each in path.glob("*.parquet"))


async def test_shards_end_at_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_files, "_SHARD_RESULTS", 2)
    failures = FailureList()
    await fetch(a_job(ends=True), tmp_path, failures)
    assert shards(tmp_path) == [f"results-00000{number}.parquet" for number in (1, 2, 3)]
    assert [index for index, _ in synergai.read_results(tmp_path)] == list(range(5))
    assert failures.lines() == ["3.jpg: broken"]
    await fetch(a_job(ends=True), tmp_path)
    assert len(shards(tmp_path)) == 3, "nothing is fetched again"


async def test_results_of_a_running_job_are_written_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_files, "_SHARD_S", 0.0)
    written = asyncio.Event()

    def report(total: int) -> None:
        if total == 5:
            written.set()

    task = asyncio.ensure_future(fetch(a_job(ends=False), tmp_path, on_progress=report))
    await written.wait()
    assert [index for index, _ in synergai.read_results(tmp_path)] == list(range(5))
    task.cancel()
    await asyncio.wait([task])


async def test_interrupted_fetch_waits_for_the_shard_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, proceed = threading.Event(), threading.Event()
    write = ResultDirectory.write

    def slow(self: ResultDirectory, *arguments: Any) -> Path:
        started.set()
        assert proceed.wait(30)
        return write(self, *arguments)

    monkeypatch.setattr(ResultDirectory, "write", slow)
    task = asyncio.ensure_future(fetch(a_job(ends=True), tmp_path))
    await asyncio.to_thread(started.wait, 30)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    proceed.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert len(list(synergai.read_results(tmp_path))) == 5
