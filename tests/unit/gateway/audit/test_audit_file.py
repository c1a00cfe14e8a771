"""The audit log's file: appended to, rotated, and dropped lines counted."""

import os
import stat
from pathlib import Path

import pytest

from gateway.entry.audit import AuditFile
from synergai.errors import InvalidInput


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
    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("gateway.entry.audit.os.write", full)
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


def test_queue_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.entry.audit.threading.Thread.start", lambda _thread: None)
    file = AuditFile(path, max_queued=10)
    for _ in range(25):
        file.append("line\n")
    assert file.dropped == 15
    os.close(file._descriptor)
