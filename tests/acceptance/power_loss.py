"""Cut the power at random points of the journal's writes; check what survives.

    python tests/acceptance/power_loss.py --cuts 500 --seed 1

A workload of jobs is recorded once, with every write, sync and acknowledgement in order. Each cut
builds the files as a disk may leave them: what was synced, and of the rest a random subset of the
writes, some of them torn at a sector. A journal opened on these files must contain every
acknowledged job and result, none of them twice, and must not be taken for damaged.
"""

import argparse
import asyncio
import itertools
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

import apsw

from gateway.journal.job_record import RecordedExecution, RecordedJob
from gateway.journal.journal import Journal
from gateway.journal.sqlite_store import SqliteStore
from gateway.journal.store import JournalBroken
from synergai.domain import AssignmentId, Configuration, EngineName, JobId, WorkerId
from synergai.jobs import JobSpec, JobState
from synergai.runtime import database
from tests.acceptance.scripts import verdict

SECTOR: Final = 512
QUERIES: Final = 10
_VFS: Final = "recording"


@dataclass(frozen=True, slots=True)
class Write:
    name: str
    offset: int
    data: bytes

    def apply(self, content: bytearray, rng: random.Random | None = None) -> None:
        """Apply the write to a file's content; with `rng`, only some of its sectors."""
        content.extend(bytes(max(0, self.offset + len(self.data) - len(content))))
        for first in range(0, len(self.data), SECTOR):
            if rng is None or rng.random() < 0.5:
                part = self.data[first : first + SECTOR]
                content[self.offset + first : self.offset + first + len(part)] = part


@dataclass(frozen=True, slots=True)
class Truncate:
    name: str
    size: int

    def apply(self, content: bytearray, _rng: random.Random | None = None) -> None:
        del content[self.size :]


@dataclass(frozen=True, slots=True)
class Sync:
    """A file synced: what was written to it is durable."""

    name: str


@dataclass(frozen=True, slots=True)
class Replace:
    """A file replaced by a synced one, or removed; durable once the directory is synced."""

    name: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """The directory synced."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A job accepted, a range of it recorded, or its end."""

    job_id: JobId
    stop: int = 0
    ended: bool = False


@dataclass
class Recording:
    events: list[Any] = field(default_factory=list)

    def image(self, cut: int, rng: random.Random) -> dict[str, bytes]:
        """Return the files as the disk may have them after the first `cut` events."""
        durable: dict[str, bytearray] = {}
        pending: dict[str, list[Write | Truncate | Replace]] = {}
        for event in self.events[:cut]:
            match event:
                case Write(name) | Truncate(name) | Replace(name):
                    pending.setdefault(name, []).append(event)
                case Sync(name):
                    # SQLite syncs the directory with a new file.
                    _apply(durable, name, pending.pop(name, []))
                    durable.setdefault(name, bytearray())
                case SyncDirectory():
                    for name, changes in pending.items():
                        renames = [n for n, each in enumerate(changes, 1) if type(each) is Replace]
                        if renames:
                            _apply(durable, name, changes[: renames[-1]])
                            del changes[: renames[-1]]
        for name, changes in pending.items():
            _apply(durable, name, _survivors(changes, rng), rng)
        return {name: bytes(content) for name, content in durable.items()}

    def acknowledged(self, cut: int) -> list[Acknowledged]:
        return [event for event in self.events[:cut] if isinstance(event, Acknowledged)]


def _survivors(
    changes: list[Write | Truncate | Replace], rng: random.Random
) -> list[Write | Truncate | Replace]:
    """Return a random subset of changes that were not synced; renames happen in order."""
    last = rng.choice([0, *(n for n, each in enumerate(changes, 1) if type(each) is Replace)])
    share = rng.choice((0.0, 0.5, 1.0))
    writes = changes[last:]
    following = next((n for n, each in enumerate(writes) if type(each) is Replace), len(writes))
    return [
        *changes[last - 1 : last],
        *(each for each in writes[:following] if rng.random() < share),
    ]


def _apply(
    files: dict[str, bytearray],
    name: str,
    changes: list[Write | Truncate | Replace],
    rng: random.Random | None = None,
) -> None:
    for change in changes:
        if not isinstance(change, Replace):
            torn = rng is not None and rng.random() < 0.2
            change.apply(files.setdefault(name, bytearray()), rng if torn else None)
        elif change.data is None:
            files.pop(name, None)
        else:
            files[name] = bytearray(change.data)


class _RecordingVfs(apsw.VFS):
    """SQLite's files, with every write recorded as it reaches the disk, checksums included."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        super().__init__(_VFS, "cksmvfs")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return _RecordingFile(self.recording, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - as above
        super().xDelete(filename, syncdir)
        self.recording.events.append(Replace(Path(filename).name, None))
        if syncdir:
            self.recording.events.append(SyncDirectory())


class _RecordingFile(apsw.VFSFile):
    def __init__(self, recording: Recording, name: Any, flags: list[int]) -> None:
        self._events = recording.events
        path = name if isinstance(name, str) else name.filename()
        self._name = Path(path).name
        super().__init__("cksmvfs", name, flags)
        # Open until the process ends: closing it would drop SQLite's locks on the file.
        self._descriptor = os.open(path, os.O_RDONLY)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - as above
        super().xWrite(data, offset)
        written = os.pread(self._descriptor, len(data), offset)
        self._events.append(Write(self._name, offset, written))

    def xTruncate(self, size: int) -> None:  # noqa: N802 - as above
        super().xTruncate(size)
        self._events.append(Truncate(self._name, size))

    def xSync(self, flags: int) -> None:  # noqa: N802 - as above
        super().xSync(flags)
        self._events.append(Sync(self._name))


def record_workload(
    directory: Path, jobs: int, seed: int, *, synchronous: str = "full"
) -> Recording:
    """Run jobs through a journal that is stopped and started three times; return the recording."""
    recording = Recording()
    database.connect(directory / "unused.db", create=True).close()  # registers the checksums
    vfs = _RecordingVfs(recording)
    write = os.pwrite

    def replaced(path: Path, text: str, _mode: int) -> None:
        path.write_text(text)
        recording.events.append(Replace(path.name, text.encode()))

    def directory_synced(_path: Path) -> None:
        recording.events.append(SyncDirectory())

    def progressed(descriptor: int, data: bytes, offset: int) -> int:
        recording.events.append(Write("journal.marker", offset, data))
        return write(descriptor, data, offset)

    marker = "gateway.journal.sqlite_store"
    with (
        mock.patch.object(database, "_CHECKSUM_VFS", _VFS),
        mock.patch(f"{marker}.write_atomic", replaced),
        mock.patch(f"{marker}.sync_path", directory_synced),
        mock.patch(f"{marker}.os.pwrite", progressed),
    ):
        asyncio.run(_run(directory / "state", recording, jobs, random.Random(seed), synchronous))
    vfs.unregister()
    return recording


async def _run(
    directory: Path, recording: Recording, jobs: int, rng: random.Random, synchronous: str
) -> None:
    for start in range(3):
        journal = Journal(directory, kept_jobs=20)
        assert isinstance(journal._store, SqliteStore)
        journal._store.connection.pragma("wal_autocheckpoint", 40)
        journal._store.connection.pragma("synchronous", synchronous)
        names = [JobId(f"job-{start}-{number}") for number in range(jobs // 3)]
        for first in range(0, len(names), 4):
            batch = [_follow(journal, recording, each, rng) for each in names[first : first + 4]]
            await asyncio.gather(*batch)
        await journal.close()


async def _follow(
    journal: Journal, recording: Recording, job_id: JobId, rng: random.Random
) -> None:
    record = RecordedJob(
        id=job_id,
        spec=JobSpec(engine=EngineName("echo"), queries=QUERIES),
        state=JobState.QUEUED,
        submitted_at=100.0,
    )
    await journal.accept(record, f"key of {job_id}")
    recording.events.append(Acknowledged(job_id))
    assignment = AssignmentId(journal.epoch << 32 | int(job_id.rpartition("-")[2]))
    for stop in sorted(rng.sample(range(1, QUERIES + 1), rng.randint(0, 3))):
        execution = RecordedExecution(
            worker_id=WorkerId("w"),
            configuration=Configuration(1),
            first=0,
            count=stop,
            seconds=1.0,
        )
        await journal.record_execution(job_id, assignment, execution)
        recording.events.append(Acknowledged(job_id, stop))
    if rng.random() < 0.5:
        ended = RecordedJob(
            id=job_id,
            spec=record.spec,
            state=JobState.CANCELLED,
            submitted_at=100.0,
            finished_at=200.0,
        )
        await journal.record_end(ended)
        recording.events.append(Acknowledged(job_id, ended=True))


async def find_errors(image: Path, acknowledged: list[Acknowledged]) -> list[str]:
    """Open a journal on the files in `image`; return what of the acknowledged is missing."""
    try:
        journal = Journal(image)
    except JournalBroken as error:
        return [f"the journal is refused: {error}"]
    found = []
    try:
        for event in acknowledged:
            record = await journal.find_job(event.job_id)
            if record is None:
                found.append(f"{event.job_id} is lost")
                continue
            ranges = sorted((each.first, each.stop) for each in record.executions)
            if sum(stop - first for first, stop in ranges) < event.stop:
                found.append(f"{event.job_id}: queries up to {event.stop} are lost")
            if any(later < stop for (_, stop), (later, _) in itertools.pairwise(ranges)):
                found.append(f"{event.job_id}: queries are recorded twice")
            if event.ended and not record.state.ended:
                found.append(f"{event.job_id}: its end is lost")
        jobs = [record.id for record in await journal.unfinished_jobs()]
        if len(set(jobs)) < len(jobs):
            found.append("a job is recorded twice")
    finally:
        await journal.close()
    return found


def cut_all(recording: Recording, cuts: int, seed: int) -> Iterator[str]:
    """Cut the power `cuts` times; yield the errors."""
    rng = random.Random(seed)
    for _ in range(cuts):
        cut = rng.randint(0, len(recording.events))
        with tempfile.TemporaryDirectory() as temporary:
            image = Path(temporary)
            for name, content in recording.image(cut, rng).items():
                (image / name).write_bytes(content)
            for error in asyncio.run(find_errors(image, recording.acknowledged(cut))):
                yield f"after {cut} events: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--synchronous", default="full", help="off is the negative control, which must fail"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        recording = record_workload(
            Path(temporary), arguments.jobs, arguments.seed, synchronous=arguments.synchronous
        )
    errors = list(cut_all(recording, arguments.cuts, arguments.seed))
    return verdict(errors, f"{arguments.cuts} cuts of {len(recording.events)} events: ")


if __name__ == "__main__":
    sys.exit(main())
