"""Clocks, temperature and throttling during a measurement; one profiler at a time."""

from pathlib import Path

import pytest

from profiler.measuring.conditions import Conditions, ConditionsMonitor, top_mhz
from worker_agent.power.files import MachineFiles

CPU = "sys/devices/system/cpu/cpu0"


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(root: Path, clock: int = 2_000_000, cap: int = 2_200_000, count: int = 0) -> None:
    write(
        root / CPU,
        cpufreq__scaling_cur_freq=str(clock),
        cpufreq__scaling_max_freq=str(cap),
        cpufreq__cpuinfo_max_freq="2265600",
        thermal_throttle__core_throttle_count=str(count),
    )
    write(root / "sys/class/thermal/thermal_zone0", type="CPU-therm", temp="48500")
    write(root / "sys/class/thermal/thermal_zone1", type="battery", temp="99000")


def test_machine_that_reports_nothing_has_no_conditions(tmp_path: Path) -> None:
    with ConditionsMonitor(MachineFiles(tmp_path)) as monitor:
        pass
    assert monitor.conditions == Conditions()
    assert top_mhz(MachineFiles(tmp_path)) == 0.0


def test_clock_and_temperature_of_the_processor_are_recorded(tmp_path: Path) -> None:
    machine(tmp_path)
    with ConditionsMonitor(MachineFiles(tmp_path)) as monitor:
        machine(tmp_path, clock=1_500_000)
    assert monitor.conditions.clock_mhz == 1500.0
    assert monitor.conditions.temperature_c == 48.5
    assert monitor.conditions.throttled == 0.0
    assert top_mhz(MachineFiles(tmp_path)) == 2265.6


@pytest.mark.parametrize("change", [{"count": 3}, {"cap": 1_200_000}])
def test_rising_counter_or_falling_cap_is_throttling(
    tmp_path: Path, change: dict[str, int]
) -> None:
    machine(tmp_path)
    with ConditionsMonitor(MachineFiles(tmp_path)) as monitor:
        machine(tmp_path, **change)
    assert monitor.conditions.throttled == 1.0


def test_active_cooling_device_of_the_processor_is_throttling(tmp_path: Path) -> None:
    for number, kind in enumerate(("pwm-fan", "thermal-cpufreq-0")):
        device = tmp_path / f"sys/class/thermal/cooling_device{number}"
        write(device, type=kind, cur_state=str(number))
    with ConditionsMonitor(MachineFiles(tmp_path)) as monitor:
        pass
    assert monitor.conditions.throttled == 1.0
