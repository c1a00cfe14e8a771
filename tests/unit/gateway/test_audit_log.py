"""Entries of the audit log, and how refusals are summed up."""

import asyncio
import errno
import io
import json
import stat
from collections.abc import Callable
from logging.handlers import QueueListener
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.entry.audit import MAX_KINDS, MAX_TEXT, AuditFile, AuditLog, Entry, _PrivateFile
from synergai.errors import InvalidInput

CHANGE = Entry(
    caller="camera",
    tenant="lab",
    credential="token",
    peer="ipv4:10.0.0.7:4711",
    call="/synergai.v1.Jobs/Submit",
    object="f00d",
)
REFUSAL = replace(CHANGE, result="PERMISSION_DENIED", reason="it may not", object="echo")


class Timer(asyncio.TimerHandle):
    """A timer that the test fires."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.active = True

    def cancel(self) -> None:
        self.active = False


class Harness:
    """An audit log with a clock and timers of the test."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.timers: list[Timer] = []
        self.time = 1700000000.0
        self.log = AuditLog(self.lines.append, lambda: self.time, self.call_later)

    def call_later(self, _seconds: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(callback))
        return self.timers[-1]

    def pass_interval(self) -> None:
        self.time += 1.0
        (timer,) = (timer for timer in self.timers if timer.active)
        timer.active = False
        timer.callback()

    def entries(self) -> list[dict[str, Any]]:
        """Return the lines since the last call."""
        entries = [json.loads(line) for line in self.lines]
        self.lines.clear()
        return entries


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_every_change_has_a_line_with_all_fields(harness: Harness) -> None:
    for _ in range(100):
        harness.log.record_change(replace(CHANGE))
    assert harness.timers == []
    assert harness.entries() == 100 * [
        {
            "time": "2023-11-14T22:13:20.000Z",
            "caller": "camera",
            "tenant": "lab",
            "credential": "token",
            "peer": "ipv4:10.0.0.7:4711",
            "call": "/synergai.v1.Jobs/Submit",
            "object": "f00d",
            "result": "OK",
            "reason": "",
            "count": 1,
        }
    ]


def test_values_are_escaped_and_cut(harness: Harness) -> None:
    name = 'x"\n\x1b[31m\u202e\ud800' + "y" * 10_000
    harness.log.record_change(replace(CHANGE, object=name))
    (line,) = harness.lines
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line)["object"] == name[:MAX_TEXT]


def test_refusals_of_a_kind_share_a_line_each_second(harness: Harness) -> None:
    for number in range(1000):
        harness.log.record_refusal(replace(REFUSAL, peer=f"ipv4:10.0.0.7:{number}"))
    assert harness.entries() == []
    harness.pass_interval()
    (entry,) = harness.entries()
    assert (entry["count"], entry["peer"]) == (1000, "ipv4:10.0.0.7:999")
    assert not any(timer.active for timer in harness.timers)
    harness.log.record_refusal(replace(REFUSAL))
    harness.pass_interval()
    assert [entry["count"] for entry in harness.entries()] == [1]


@pytest.mark.parametrize(
    "other",
    [
        {"peer": "ipv4:10.0.0.8:4711"},
        {"caller": "guest"},
        {"call": "/synergai.v1.Jobs/Cancel"},
        {"result": "RESOURCE_EXHAUSTED"},
    ],
)
def test_refusals_of_other_kinds_have_lines_of_their_own(
    harness: Harness, other: dict[str, str]
) -> None:
    harness.log.record_refusal(replace(REFUSAL))
    harness.log.record_refusal(replace(REFUSAL, **other))
    harness.pass_interval()
    assert [entry["count"] for entry in harness.entries()] == [1, 1]


def test_flood_from_many_peers_is_bounded(harness: Harness) -> None:
    for number in range(10_000):
        peer = f"ipv4:10.{number // 250}.{number % 250}.1:9"
        harness.log.record_refusal(replace(REFUSAL, peer=peer))
    harness.pass_interval()
    *single, entry = harness.entries()
    assert [each["count"] for each in single] == [1] * MAX_KINDS
    assert (entry["caller"], entry["peer"]) == ("others", "others")
    assert entry["count"] == 10_000 - MAX_KINDS


def test_counted_refusals_are_written_at_the_end(harness: Harness) -> None:
    harness.log.record_refusal(replace(REFUSAL))
    harness.log.record_refusal(replace(REFUSAL))
    harness.log.flush()
    assert [entry["count"] for entry in harness.entries()] == [2]
    assert not any(timer.active for timer in harness.timers)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def test_lines_are_appended_to_a_private_file(path: Path) -> None:
    for number in range(2):
        file = AuditFile(path)
        file.append(f"line {number}")
        file.close()
    assert path.read_text() == "line 0\nline 1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file.dropped == 0


def test_moved_file_is_followed_by_a_new_one(path: Path) -> None:
    file = AuditFile(path)
    moved = path.with_suffix(".1")
    path.rename(moved)
    for number in range(1000):
        file.append(f"line {number}")
    file.close()
    assert moved.read_text() == ""
    assert path.read_text().splitlines() == [f"line {number}" for number in range(1000)]


def test_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"audit log .*missing.* cannot be opened: No such"):
        AuditFile(tmp_path / "missing" / "audit.log")


class FullDisk(io.FileIO):
    """A file on a disk that has room for `space` more bytes."""

    space = 0

    def write(self, data: Any) -> int:
        if not FullDisk.space:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = super().write(bytes(data)[: FullDisk.space])
        FullDisk.space -= written
        return written


class FailingToClose(io.TextIOWrapper):
    """A file whose server tells only at its end that something was not written."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            raise OSError(errno.EIO, "Input/output error")


def open_on_full_disk(file: _PrivateFile) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(FullDisk(file.baseFilename, "a")))


def test_lines_that_a_full_disk_refuses_are_counted_and_logged_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_PrivateFile, "_open", open_on_full_disk)
    monkeypatch.setattr(FullDisk, "space", 4)
    file = AuditFile(path)
    for _ in range(600):
        file.append("a line that does not fit")
    file._queue.join()
    assert file.dropped == 600
    (logged,) = caplog.messages
    assert "cannot be written: [Errno 28] No space left on device" in logged
    FullDisk.space = 100_000
    file.append("whole")
    file.close()
    assert file.dropped == 600
    assert "is written again" in caplog.messages[-1]
    # What was cut short has been completed.
    *previous, last = path.read_text().splitlines()
    assert set(previous) == {"a line that does not fit"}
    assert last == "whole"


def test_moved_file_that_cannot_be_closed_is_followed_by_a_new_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AuditFile(path)
    assert file._file.stream is not None
    monkeypatch.setattr(file._file, "stream", FailingToClose(file._file.stream.detach()))
    path.rename(path.with_suffix(".1"))
    for line in ("lost", "kept"):
        file.append(line)
    file.close()
    assert path.read_text() == "kept\n"
    assert file.dropped == 1


def test_file_that_is_moved_and_cannot_be_opened_again_does_not_end_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    file = AuditFile(folder / "audit.log")
    folder.rename(tmp_path / "moved")
    file.append("lost")
    file._queue.join()
    assert file.dropped == 1
    folder.mkdir()
    file.append("kept")
    file.close()
    assert (folder / "audit.log").read_text() == "kept\n"
    assert file.dropped == 1


def test_queue_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueListener, "start", lambda _writer: None)
    file = AuditFile(path, max_queued=10)
    for _ in range(25):
        file.append("line")
    assert file.dropped == 15
    file._file.close()
