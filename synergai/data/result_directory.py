"""Directory with the results of one job: a marker with the job, and numbered shards."""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec

from synergai.data.parquet import import_arrow
from synergai.data.shards import TEMPORARY_PREFIX, describe_shard, read_shard, write_shard
from synergai.errors import Conflict, InvalidInput
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.data.items import JobResult

MARKER: Final = "synergai-job.json"
_SHARD: Final = re.compile(r"results-([0-9]{6,})\.parquet")


class DirectoryMarker(msgspec.Struct, frozen=True):
    """The job that a directory of results belongs to.

    Attributes:
        job_id: the job; empty if it was not accepted.
        submission: digest of the command that submits the job; empty if it was submitted before.
    """

    job_id: str = ""
    engine: str = ""
    submission: str = ""


class ResultDirectory:
    """A directory that takes the results of one job; a context manager that locks it.

    Files that are not its own are left alone.

    Args:
        path: the directory; it is created if it does not exist.

    Attributes:
        marker: whose results it has; None if it has none yet.
        cursor: where the results continue after its last shard.
    """

    def __init__(self, path: Path) -> None:
        import_arrow()  # before anything is uploaded or fetched
        self._is_new = not path.exists()
        if not (self._is_new or path.is_dir()):
            raise InvalidInput(f"{path} is a file; results are written into a directory")
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.marker: DirectoryMarker | None = None
        self.cursor = self.total = 0
        self._next = 1
        self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._acquire()
            self.marker = read_marker(path)
            self._continue_after(list_shards(path))
            self._remove_temporary_files()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_new and self.marker is None:
            # Nothing came of the command: it leaves no directory behind.
            with suppress(OSError):
                self.path.rmdir()
        os.close(self._lock)

    def check(self, marker: DirectoryMarker) -> None:
        """Check that the directory can take the results of a job, or of a command.

        A marker without a job is of a submission that was not accepted, and binds nothing.
        """
        found = self.marker
        if found is None or not found.job_id:
            return
        same_command = bool(found.submission) and found.submission == marker.submission
        if not (same_command or found.job_id == marker.job_id):
            why = ""
            if found.submission and marker.submission:
                why = ", since the options or the files differ"
            raise Conflict(
                f"{self.path} has the results of job {found.job_id} ({found.engine}); choose "
                f"another directory{why}"
            )

    def claim(self, marker: DirectoryMarker) -> None:
        """Record whose results the directory takes."""
        self.check(marker)
        found = self.marker
        if found is not None and found.job_id:
            marker = DirectoryMarker(
                found.job_id,
                marker.engine or found.engine,
                marker.submission or found.submission,
            )
        if marker != found:
            text = msgspec.json.format(msgspec.json.encode(marker), indent=2).decode()
            write_atomic(self.path / MARKER, f"{text}\n")
            self.marker = marker

    def write(self, results: Sequence[JobResult], cursor: int) -> Path:
        """Write the next shard and return its path."""
        if self.marker is None or not self.marker.job_id:
            raise InvalidInput(f"{self.path} has not been claimed for a job")
        path = self.path / f"results-{self._next:06}.parquet"
        total = self.total + len(results)
        write_shard(path, results, job_id=self.marker.job_id, cursor=cursor, total=total)
        self._next += 1
        self.cursor, self.total = cursor, total
        return path

    def _continue_after(self, shards: Sequence[Path]) -> None:
        if not shards:
            return
        if self.marker is None:
            raise Conflict(
                f"{self.path} has results of a job, but no {MARKER} that says which; choose "
                "another directory"
            )
        last = describe_shard(shards[-1])
        self._next, self.cursor, self.total = _number(shards[-1]) + 1, last.cursor, last.total

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another process writes results to {self.path}") from None
        except OSError:
            pass  # a file system without locks

    def _remove_temporary_files(self) -> None:
        """Remove what a killed process has left; the lock makes sure that it is not in use."""
        for path in self.path.glob(f"{TEMPORARY_PREFIX}results-*"):
            with suppress(OSError):
                path.unlink()


def read_marker(directory: Path) -> DirectoryMarker | None:
    """Return the marker of a directory; None without one."""
    path = directory / MARKER
    try:
        return msgspec.json.decode(path.read_bytes(), type=DirectoryMarker)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} is not the marker of a job: {error}") from None


def list_shards(directory: Path) -> list[Path]:
    """Return the shards of a directory, in their order."""
    return sorted((p for p in directory.iterdir() if _SHARD.fullmatch(p.name)), key=_number)


def _number(path: Path) -> int:
    match = _SHARD.fullmatch(path.name)
    return int(match[1]) if match else 0


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
        for result in read_shard(shard):
            yield result.index, result
