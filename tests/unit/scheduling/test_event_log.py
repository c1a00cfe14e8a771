"""The event log when the disk does not play along."""

from __future__ import annotations

from pathlib import Path

import pytest

from synergai.errors import Unavailable
from synergai.profiles.dictionary import ConfigurationDictionary
from synergai.scheduling.event_log import EventLog
from synergai.scheduling.events import SchedulingSettings, TimePassed

ALWAYS_FULL = Path("/dev/full")


def a_log(path: Path) -> EventLog:
    return EventLog(path, SchedulingSettings(), ConfigurationDictionary(), epoch=1)


def test_full_disk_ends_the_log_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with a_log(ALWAYS_FULL) as log:
        for second in range(40_000):  # more than is buffered
            log.record(TimePassed(), float(second), [])
    assert [record.message for record in caplog.records] == [
        "event log /dev/full closed: No space left on device"
    ]


def test_disk_that_is_full_at_the_end_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with a_log(ALWAYS_FULL) as log:
        log.record(TimePassed(), 1.0, [])
    assert "event log /dev/full closed" in caplog.text


def test_log_that_cannot_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot write .*: No such file"):
        a_log(tmp_path / "missing" / "log")
