"""Verified switching, with a simulated machine and clock."""

import pytest

from worker_agent.power.controller import Reading, SwitchFailed, SwitchResult, SwitchTiming, switch


class Machine:
    """Switches after a delay, or to another mode."""

    def __init__(self, *, lag: float = 0.0, goes_to: dict[str, str] | None = None) -> None:
        self.now = 0.0
        self.requested: list[str] = []
        self.failure = ""
        self._mode = "slow"
        self._due = 0.0
        self._next = "slow"
        self._lag = lag
        self._goes_to = goes_to or {}

    @property
    def timing(self) -> SwitchTiming:
        return SwitchTiming(
            settle=1.0, timeout=5.0, interval=0.25, clock=lambda: self.now, sleep=self.sleep
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def read(self) -> Reading:
        if self.now >= self._due:
            self._mode = self._next
        return Reading(self._mode, "" if self._mode else "core 3 is offline")

    def apply(self, mode: str) -> str:
        self.requested.append(mode)
        self._next = self._goes_to.get(mode, mode)
        self._due = self.now + self._lag
        return self.failure

    def switch(self, mode: str) -> SwitchResult:
        return switch(mode, read=self.read, apply=self.apply, timing=self.timing)


def test_a_switch_takes_until_the_reading_has_stayed_for_the_settling_time() -> None:
    assert Machine(lag=2.0).switch("fast") == SwitchResult("fast", 3.0)


def test_a_machine_in_no_known_mode_is_switched_back() -> None:
    machine = Machine(goes_to={"fast": ""})
    with pytest.raises(SwitchFailed, match=r"core 3 is offline.*the machine is in slow") as failed:
        machine.switch("fast")
    assert failed.value.reading == Reading("slow")
    assert machine.requested == ["fast", "slow"]


def test_a_failure_to_switch_back_is_reported() -> None:
    machine = Machine(goes_to={"fast": "", "slow": ""})
    with pytest.raises(SwitchFailed, match="in no known mode") as failed:
        machine.switch("fast")
    assert failed.value.reading.mode == ""


def test_another_valid_mode_is_left_in_force() -> None:
    machine = Machine(goes_to={"fast": "other"})
    with pytest.raises(SwitchFailed) as failed:
        machine.switch("fast")
    assert failed.value.reading == Reading("other")
    assert machine.requested == ["fast"]
