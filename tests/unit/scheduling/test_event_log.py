"""The event log on a failing disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from synergai.errors import Unavailable
from synergai.profiles.dictionary import ConfigurationDictionary
from synergai.scheduling.event_log import EventLog
from synergai.scheduling.events import SchedulingSettings, TimePassed

ALWAYS_FULL = Path("/dev/full")


def make_log(path: Path) -> EventLog:
    return EventLog(path, SchedulingSettings(), ConfigurationDictionary(), epoch=1)


def test_full_disk_closes_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    with make_log(ALWAYS_FULL) as log:
        for second in range(40_000):  # exceeds the buffer
            log.record(TimePassed(), float(second), [])
    assert [record.message for record in caplog.records] == [
        "event log /dev/full closed: No space left on device"
    ]


def test_full_disk_on_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with make_log(ALWAYS_FULL) as log:
        log.record(TimePassed(), 1.0, [])
    assert "event log /dev/full closed" in caplog.text


def test_unwritable_path_raises_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot write .*: No such file"):
        make_log(tmp_path / "missing" / "log")
