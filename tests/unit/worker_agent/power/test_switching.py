"""The way of a switch, with a machine and a clock made of lists."""

from __future__ import annotations

import pytest

from worker_agent.power.controller import Reading, Switch, SwitchFailed
from worker_agent.power.switching import Patience, switch


class Machine:
    """Follows a switch after some time, or to somewhere else."""

    def __init__(self, *, lag: float = 0.0, goes_to: dict[str, str] | None = None) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.complaint = ""
        self._mode = "slow"
        self._due = 0.0
        self._next = "slow"
        self._lag = lag
        self._goes_to = goes_to or {}

    @property
    def patience(self) -> Patience:
        return Patience(settle=1.0, limit=5.0, pause=0.25, clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def read(self) -> Reading:
        if self.now >= self._due:
            self._mode = self._next
        return Reading(self._mode, "" if self._mode else "core 3 is offline")

    def apply(self, mode: str) -> str:
        self.asked.append(mode)
        self._next = self._goes_to.get(mode, mode)
        self._due = self.now + self._lag
        return self.complaint

    def switch(self, mode: str) -> Switch:
        return switch(mode, read=self.read, apply=self.apply, patience=self.patience)


def test_a_switch_takes_until_the_reading_has_stayed_for_the_settling_time() -> None:
    assert Machine(lag=2.0).switch("fast") == Switch("fast", 3.0)


def test_a_mode_in_force_is_not_asked_for() -> None:
    machine = Machine()
    assert machine.switch("slow") == Switch("slow", 0.0)
    assert machine.asked == []


def test_a_machine_that_is_too_late_has_failed_in_the_mode_that_is_read() -> None:
    machine = Machine(lag=6.0)
    with pytest.raises(SwitchFailed, match="it is in slow") as failed:
        machine.switch("fast")
    assert failed.value.reading == Reading("slow")


def test_a_machine_left_in_no_mode_is_put_back_where_it_was() -> None:
    machine = Machine(goes_to={"fast": ""})
    with pytest.raises(SwitchFailed, match=r"core 3 is offline.*the machine is in slow") as failed:
        machine.switch("fast")
    assert failed.value.reading == Reading("slow")
    assert machine.asked == ["fast", "slow"]


def test_a_machine_that_cannot_be_put_back_is_reported_so() -> None:
    machine = Machine(goes_to={"fast": "", "slow": ""})
    with pytest.raises(SwitchFailed, match="in no known mode") as failed:
        machine.switch("fast")
    assert failed.value.reading.mode == ""


def test_another_whole_mode_is_left_as_somebody_elses_choice() -> None:
    machine = Machine(goes_to={"fast": "theirs"})
    with pytest.raises(SwitchFailed) as failed:
        machine.switch("fast")
    assert failed.value.reading == Reading("theirs")
    assert machine.asked == ["fast"]


def test_a_complaint_does_not_count_against_what_is_read() -> None:
    machine = Machine()
    machine.complaint = "fan mode is not set"
    assert machine.switch("fast").mode == "fast"


def test_a_complaint_is_the_reason_when_the_machine_did_not_follow_and_ends_the_waiting() -> None:
    machine = Machine(lag=9.0)
    machine.complaint = "permission denied"
    with pytest.raises(SwitchFailed, match="permission denied"):
        machine.switch("fast")
    assert machine.now == 0.0
