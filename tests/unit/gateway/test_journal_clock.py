"""Deadlines of unfinished jobs over a restart, for any change of the system clock."""

from pathlib import Path

import pytest

from gateway.journal.journal import Journal
from synergai.runtime.clock import MAX_DOWNTIME_S, Clock, ClockReading
from tests.unit.gateway.test_journal import a_record, ended

HOUR = 3600.0


class FrozenClock(Clock):
    """A clock that stands still at a reading."""

    def __init__(self, reading: ClockReading) -> None:
        super().__init__()
        self._reading = reading

    def read(self) -> ClockReading:
        return self._reading


BEFORE = ClockReading("boot 1", 5000.0, 160.0)
"""The jobs were submitted at 100.0, so they were a minute old."""


@pytest.mark.parametrize(
    ("after", "age_s"),
    [
        (ClockReading("boot 1", 5010.0, 170.0), 70),
        (ClockReading("boot 1", 5010.0, 170.0 + HOUR), 70),
        (ClockReading("boot 1", 5010.0, 170.0 - HOUR), 70),
        (ClockReading("boot 2", 8.0, 170.0), 70),
        (ClockReading("boot 2", 8.0, 160.0 + HOUR), 60 + HOUR),
        (ClockReading("boot 2", 8.0, 170.0 - HOUR), 60),
        (ClockReading("boot 2", 8.0, 160.0 + 9 * MAX_DOWNTIME_S), 60 + MAX_DOWNTIME_S),
        (ClockReading("", 5010.0, 170.0), 70),
    ],
)
async def test_age_of_a_job_follows_the_time_that_passed(
    tmp_path: Path, after: ClockReading, age_s: float
) -> None:
    journal = Journal(tmp_path, clock=FrozenClock(BEFORE))
    await journal.accept(a_record("waiting", qos=90.0))
    await journal.accept(a_record("ended"))
    await journal.record_end(ended(a_record("ended")))
    await journal.close()
    for _ in range(2):  # the second start finds an unchanged clock
        journal = Journal(tmp_path, clock=FrozenClock(after))
        [waiting] = await journal.unfinished_jobs()
        past = await journal.find_job(a_record("ended").id)
        await journal.close()
        assert after.unix - waiting.submitted_at == pytest.approx(age_s)
        assert waiting.deadline_at - after.unix == pytest.approx(90.0 - age_s)
        assert past is not None
        assert (past.submitted_at, past.finished_at) == (100.0, 200.0)


async def test_change_of_the_clock_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await Journal(tmp_path, clock=FrozenClock(BEFORE)).close()
    await Journal(tmp_path, clock=FrozenClock(BEFORE._replace(unix=160.0 + HOUR))).close()
    assert "changed by +3600 s" in caplog.text
