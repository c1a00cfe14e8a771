"""Entries of the audit log, and how refusals are summed up."""

import asyncio
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from gateway.entry.audit import MAX_KINDS, MAX_TEXT, AuditFile, AuditLog, Entry, to_line
from synergai.errors import InvalidInput

CHANGE = Entry(
    caller="camera",
    tenant="lab",
    credential="token",
    peer="ipv4:10.0.0.7:4711",
    call="/synergai.v1.Jobs/Submit",
    object="f00d",
)
REFUSAL = replace(
    CHANGE, result="PERMISSION_DENIED", reason="it may not", object="echo", refused=True
)


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
        harness.log.record(CHANGE)
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


def test_values_are_escaped_and_cut() -> None:
    line = to_line(replace(CHANGE, object='x"\n\x1b[31m\u202e\ud800' + "y" * 10_000), 0.0)
    assert line.isascii()
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert len(json.loads(line)["object"]) == MAX_TEXT
    assert json.loads(line)["object"].startswith('x"\n\x1b[31m')


def test_repeated_refusals_share_a_line_each_second(harness: Harness) -> None:
    for number in range(1000):
        harness.log.record(replace(REFUSAL, peer=f"ipv4:10.0.0.7:{number}"))
    assert [entry["count"] for entry in harness.entries()] == [1]
    harness.pass_interval()
    (entry,) = harness.entries()
    assert (entry["count"], entry["peer"]) == (999, "ipv4:10.0.0.7:999")
    harness.log.record(REFUSAL)
    harness.log.record(REFUSAL)
    harness.pass_interval()
    assert [entry["count"] for entry in harness.entries()] == [2]
    harness.pass_interval()
    assert not any(timer.active for timer in harness.timers)
    harness.log.record(REFUSAL)
    assert [entry["count"] for entry in harness.entries()] == [1]


@pytest.mark.parametrize(
    "other",
    [
        {"peer": "ipv4:10.0.0.8:4711"},
        {"caller": "guest"},
        {"call": "/synergai.v1.Jobs/Cancel"},
        {"result": "RESOURCE_EXHAUSTED"},
        {"quota": "requests_per_s"},
    ],
)
def test_refusals_of_other_kinds_have_lines_of_their_own(
    harness: Harness, other: dict[str, str]
) -> None:
    harness.log.record(REFUSAL)
    harness.log.record(replace(REFUSAL, **other))
    assert [entry["count"] for entry in harness.entries()] == [1, 1]


def test_flood_from_many_peers_is_bounded(harness: Harness) -> None:
    for number in range(10_000):
        harness.log.record(replace(REFUSAL, peer=f"ipv4:10.{number // 250}.{number % 250}.1:9"))
    assert len(harness.entries()) == MAX_KINDS + 1
    harness.pass_interval()
    (entry,) = harness.entries()
    assert (entry["caller"], entry["peer"]) == ("others", "others")
    assert entry["count"] == 10_000 - MAX_KINDS - 1


def test_counted_refusals_are_written_at_the_end(harness: Harness) -> None:
    harness.log.record(REFUSAL)
    harness.log.record(REFUSAL)
    harness.log.close()
    assert [entry["count"] for entry in harness.entries()] == [1, 1]
    assert not any(timer.active for timer in harness.timers)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def test_lines_are_appended_to_a_private_file(path: Path) -> None:
    for number in range(2):
        file = AuditFile(path)
        file.append(f"line {number}\n")
        file.close()
    assert path.read_text() == "line 0\nline 1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file.dropped == 0


def test_moved_file_is_followed_by_a_new_one(path: Path) -> None:
    file = AuditFile(path)
    moved = path.with_suffix(".1")
    path.rename(moved)
    for number in range(1000):
        file.append(f"line {number}\n")
    file.close()
    assert moved.read_text() == ""
    assert path.read_text().splitlines() == [f"line {number}" for number in range(1000)]


def test_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"audit log .*missing.* cannot be opened: No such"):
        AuditFile(tmp_path / "missing" / "audit.log")


def test_lines_that_cannot_be_written_are_counted_and_logged_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            "gateway.entry.audit.os.write", Mock(side_effect=OSError(28, "No space left on device"))
        )
        file = AuditFile(path)
        for _ in range(600):
            file.append("lost\n")
        file.close()
    assert file.dropped == 600
    assert len(caplog.records) == 1
    assert "cannot be written: No space left on device" in caplog.text
    file = AuditFile(path)
    file.append("kept\n")
    file.close()
    assert path.read_text() == "kept\n"


def test_line_cut_short_by_a_full_disk_does_not_spoil_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = AuditFile(path)
    write = os.write
    limits = iter([4, 1000])
    monkeypatch.setattr(
        "gateway.entry.audit.os.write",
        lambda descriptor, data: write(descriptor, data[: next(limits)]),
    )
    file._write(["cut short\n", "lost\n"])
    file._write(["whole\n"])
    file.close()
    assert path.read_text() == "cut \nwhole\n"
    assert file.dropped == 2
    assert "the disk is full" in caplog.text
    assert "is written again" in caplog.text


def test_moved_file_that_cannot_be_closed_is_followed_by_a_new_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AuditFile(path)
    path.rename(path.with_suffix(".1"))
    with monkeypatch.context() as patched:
        patched.setattr("gateway.entry.audit.os.close", Mock(side_effect=OSError(5, "I/O error")))
        file._write(["first\n"])
    file._write(["second\n"])
    file.close()
    assert path.read_text() == "first\nsecond\n"
    assert file.dropped == 0


def test_file_that_is_moved_and_cannot_be_opened_again_does_not_end_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    file = AuditFile(folder / "audit.log")
    folder.rename(tmp_path / "moved")
    file._write(["lost\n"])
    assert file.dropped == 1
    folder.mkdir()
    file.append("kept\n")
    file.close()
    assert (folder / "audit.log").read_text() == "kept\n"
    assert file.dropped == 1


def test_disk_that_hangs_does_not_keep_the_gateway_from_ending(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.entry.audit._CLOSE_WITHIN_S", 0.01)
    written = threading.Event()
    monkeypatch.setattr("gateway.entry.audit.os.write", lambda *_: written.wait() and 5)
    file = AuditFile(path)
    file.append("line\n")
    file.close()
    assert file._thread.is_alive()
    written.set()
    file._thread.join()


def test_queue_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.entry.audit.threading.Thread.start", lambda _thread: None)
    file = AuditFile(path, max_queued=10)
    for _ in range(25):
        file.append("line\n")
    assert file.dropped == 15
    os.close(file._descriptor)
