"""Reading of results that a job has written to a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from synergai.data.result_directory import list_shards
from synergai.data.shards import format_of
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from synergai.data.results import JobResult


def read_results(path: str | os.PathLike[str]) -> Iterator[tuple[int, JobResult]]:
    """Yield the results of a job from the directory that they were written to.

    They come in the order in which the job stored them, while it runs as well: results that are
    written after the call are not among them. One shard at a time is in memory.

    Args:
        path: a directory given as ``--output``, or one of its shards.

    Yields:
        The position of each input, and its result; one that failed has its ``error`` set.
    """
    path = Path(path)
    if not path.exists():
        raise InvalidInput(f"{path}: no such directory")
    for shard in list_shards(path) if path.is_dir() else [path]:
        for result in format_of(shard).read(shard):
            yield result.index, result
