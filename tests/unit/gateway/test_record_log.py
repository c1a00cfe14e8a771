"""The log of records: what is durable survives a cut at any byte, and nothing else appears."""

import errno
import os
import struct
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.journal import record_log
from gateway.journal.record_log import DamagedLog, Record, RecordLog, remove_log
from synergai.errors import Unavailable

ALL = 1 << 40


def append(log: RecordLog, *payloads: bytes) -> None:
    first = len(log.tags())
    log.append(Record(first + number, (payload,)) for number, payload in enumerate(payloads))
    log.sync()


def payloads_of(log: RecordLog, limit_bytes: int = ALL) -> list[bytes]:
    found: list[bytes] = []
    while batch := log.read(len(found), ALL, limit_bytes):
        found += batch
    return found


def test_next_epoch_has_what_was_durable_and_nothing_that_the_former_one_writes_later(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "log"
    former = RecordLog(directory, segment_bytes=64, epoch=1)
    append(former, *[bytes([number]) * 30 for number in range(5)])
    former.append([Record(5, (b"not durable",))])
    with closing(RecordLog(directory, segment_bytes=64, epoch=2)) as log:
        before = payloads_of(log)
        former.sync()
        append(former, b"late", b"later")
        append(log, b"six")
        former.append([Record(8, (b"once more",))])
        assert payloads_of(log)[:5] == before[:5]
    with closing(RecordLog(directory, segment_bytes=64, epoch=3)) as log:
        assert payloads_of(log) == [*before, b"six"]
    with pytest.raises(Unavailable, match="another gateway has taken over"):
        RecordLog(directory, segment_bytes=64, epoch=1)
    remove_log(directory, epoch=1)
    with closing(RecordLog(directory, segment_bytes=64)) as log:  # of one gateway again
        assert payloads_of(log) == [*before, b"six"]
    remove_log(directory)
    assert not directory.exists()


def test_durable_records_are_read_in_order(tmp_path: Path) -> None:
    with closing(RecordLog(tmp_path / "log", segment_bytes=64)) as log:
        written = [bytes([number]) * number for number in range(40)]
        append(log, *written[:7])
        append(log, *written[7:])
        assert (len(log), payloads_of(log), list(log.tags())) == (40, written, list(range(40)))
        assert payloads_of(log, 0) == written
        assert log.read(39, 10, ALL) == written[39:]
        log.append([Record(40, (b"a", b"b"))])
        assert (len(log), log.read(40, 1, ALL)) == (40, []), "it is not durable"
        log.sync()
        assert log.read(40, 1, ALL) == [b"ab"]
        written.append(b"ab")
    with closing(RecordLog(tmp_path / "log", segment_bytes=64)) as log:
        assert (payloads_of(log), list(log.tags())) == (written, list(range(41)))


def test_failed_append_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_descriptor: int, buffers: Sequence[bytes | memoryview]) -> None:
        os.write(_descriptor, bytes(buffers[0])[:3])
        raise OSError(errno.ENOSPC, "full")

    with closing(RecordLog(tmp_path / "log", segment_bytes=30)) as log:
        append(log, b"kept")
        with monkeypatch.context() as patch:
            patch.setattr(record_log, "_write", write)
            with pytest.raises(OSError, match="full"):
                log.append([Record(9, (b"x" * 40,)), Record(9, (b"y" * 40,))])
        append(log, b"next")
        assert payloads_of(log) == [b"kept", b"next"]
    with closing(RecordLog(tmp_path / "log", segment_bytes=30)) as log:
        assert payloads_of(log) == [b"kept", b"next"]


def _synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int]]:
    """Return what is synced from now on: files with their sizes, directories with their entries."""
    synced: list[tuple[Path, int]] = []

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path, len([*path.iterdir()]) if path.is_dir() else path.stat().st_size))

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "fdatasync", sync)
    return synced


def test_segment_is_durable_before_the_next_one_begins_and_both_keep_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(RecordLog(tmp_path, segment_bytes=30)) as log:
        synced = _synced(monkeypatch)
        append(log, b"a" * 40, b"b")
    first, second = tmp_path / "00000001.records", tmp_path / "00000002.records"
    assert synced == [(first, 56), (tmp_path, 3), (second, 17)]


def test_copies_of_a_new_epoch_are_durable_before_the_files_of_the_former_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = RecordLog(tmp_path, epoch=1)
    append(former, b"a")
    synced = _synced(monkeypatch)
    RecordLog(tmp_path, epoch=2).close()
    copies = [tmp_path / ".new-00000001.records.2", tmp_path / ".new-index.2"]
    assert [path for path, _ in synced] == [*copies, tmp_path]
    assert synced[-1] == (tmp_path, 4)


def test_new_log_keeps_its_name_and_those_of_the_directories_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = _synced(monkeypatch)
    directory = tmp_path / "data" / "tenant-lab" / "uploads"
    RecordLog(directory / "up").close()
    assert {(each, 1) for each in (directory, *directory.parents[:3])} <= set(synced)


def test_log_at_rest_has_no_open_files(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "log", segment_bytes=30)
    assert _open_files(tmp_path) == []
    for payload in (b"a" * 40, b"b", b"c"):
        append(log, payload)
        assert _open_files(tmp_path) == []
    log.append([Record(9, (b"not synced",))])
    assert len(_open_files(tmp_path)) == 1
    log.close()
    assert _open_files(tmp_path) == []


def _open_files(directory: Path) -> list[Path]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.append(descriptor.readlink())
    return [path for path in found if path.is_relative_to(directory)]


def test_flipped_bit_is_noticed(tmp_path: Path) -> None:
    with closing(RecordLog(tmp_path / "log")) as log:
        append(log, b"first", b"second")
        [segment] = (tmp_path / "log").glob("*.records")
        content = bytearray(segment.read_bytes())
        content[-1] ^= 1
        segment.write_bytes(content)
        assert log.read(0, 1, ALL) == [b"first"]
        with pytest.raises(DamagedLog, match="record 1"):
            log.read(1, 1, ALL)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    groups=st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=5), max_size=6),
    segment_bytes=st.integers(20, 200),
    data=st.data(),
)
def test_cut_at_any_byte_keeps_all_that_was_written_before_it(
    tmp_path: Path,
    groups: list[list[bytes]],
    segment_bytes: int,
    data: st.DataObject,
) -> None:
    """A power cut: the last segment ends anywhere, perhaps in zeros, and the index too."""
    directory = tmp_path / os.urandom(8).hex()
    with closing(RecordLog(directory, segment_bytes=segment_bytes)) as log:
        for group in groups:
            append(log, *group)
    written = [payload for group in groups for payload in group]
    segment = max(directory.glob("*.records"))
    content = segment.read_bytes()
    index = directory / "index"
    entries = index.read_bytes()
    indexed = data.draw(st.integers(0, len(entries)), label="bytes of the index")
    durable = 0  # the index is written after the records
    for position, _, length, _ in list(struct.iter_unpack("<QQII", entries))[: indexed // 24]:
        if position >> 40 == int(segment.stem):
            durable = (position & (1 << 40) - 1) + 16 + length
    kept = data.draw(st.integers(durable, len(content)), label="bytes of the last segment")
    zeros = data.draw(st.sampled_from([0, 1, 100]), label="zeros behind them")
    segment.write_bytes(content[:kept] + bytes(zeros))
    index.write_bytes(entries[:indexed] + bytes(zeros))

    with closing(RecordLog(directory, segment_bytes=segment_bytes)) as log:
        found = payloads_of(log)
        before = sum(path.stat().st_size for path in directory.glob("*.records"))
        assert found == written[: len(found)]
        assert log.bytes == before
        lost = content[kept:]
        assert len(found) == len(written) or lost
        append(log, b"after")
        assert payloads_of(log) == [*found, b"after"]
    with closing(RecordLog(directory, segment_bytes=segment_bytes)) as log:
        assert payloads_of(log) == [*found, b"after"]
