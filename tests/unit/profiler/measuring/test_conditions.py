"""Clocks, temperature and throttling during a measurement; one profiler at a time."""

import os
from pathlib import Path

import pytest

from profiler.measuring.cli import check_not_serving, only_profiler, profile
from profiler.measuring.conditions import Conditions, ConditionsMonitor, top_mhz
from profiler.measuring.profiler_settings import ProfilerSettings
from synergai.domain import WorkerClass
from synergai.errors import NotFound, Unavailable
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


def test_second_profiler_of_a_worker_is_refused(tmp_path: Path) -> None:
    with only_profiler(WorkerClass("a"), tmp_path):
        with (
            pytest.raises(Unavailable, match="another profiler is measuring a"),
            only_profiler(WorkerClass("a"), tmp_path),
        ):
            pass
        with only_profiler(WorkerClass("b"), tmp_path):
            pass
    with only_profiler(WorkerClass("a"), tmp_path):
        pass


def process(proc: Path, pid: int, parent: int, *arguments: str) -> None:
    write(
        proc / str(pid),
        cmdline="\0".join(arguments),
        stat=f"{pid} (python) S {parent} 0 0",
    )


def test_engines_of_a_worker_in_service_are_noticed_and_those_of_profilers_not(
    tmp_path: Path,
) -> None:
    process(tmp_path, 10, 1, "python", "-m", "profiler.measuring.measuring_process")
    process(tmp_path, 11, 10, "python", "-m", "worker_agent.host.main")
    process(tmp_path, 12, 1, "grep", "worker_agent.host.mainly")
    check_not_serving(tmp_path)
    process(tmp_path, 13, 1, "python", "-m", "worker_agent.host.main")
    with pytest.raises(Unavailable, match=r"process 13.*--while-serving"):
        check_not_serving(tmp_path)


def test_unknown_engine_is_refused_before_a_worker_is_to_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise Unavailable("a worker on this machine has engines in service")

    monkeypatch.setattr("profiler.measuring.cli.check_not_serving", refuse)
    settings = ProfilerSettings(
        models=tmp_path,
        engines=("nope",),
        dictionary=tmp_path / "d.db",
        worker_class=f"refused-{os.getpid()}",
        root=tmp_path,
    )
    with pytest.raises(NotFound, match="no engine 'nope'"):
        profile(settings)
