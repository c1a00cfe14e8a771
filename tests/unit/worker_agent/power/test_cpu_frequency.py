"""CPU clock and core count as modes, on an emulated machine with four cores."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from synergai.errors import InvalidInput, NotSupported
from worker_agent.power.controller import Reading, SwitchFailed, SwitchTiming
from worker_agent.power.cpufreq import CpuFrequencyController
from worker_agent.power.files import MachineFiles, format_cpus

CPU = "/sys/devices/system/cpu"
NO_SETTLING = SwitchTiming(settle=0.0, timeout=0.0)


class Cores(MachineFiles):
    """Keeps the list of online cores consistent with their flags, as the kernel does."""

    __slots__ = ()
    stuck = False

    def write(self, path: str, text: str) -> None:
        if self.stuck:
            raise OSError(16, "Device or resource busy", path)
        super().write(path, text)
        flags = {core: self.path(f"{CPU}/cpu{core}/online") for core in range(4)}
        online = [c for c, flag in flags.items() if not flag.exists() or flag.read_text() == "1"]
        self.path(f"{CPU}/online").write_text(format_cpus(online))


@pytest.fixture
def cores(tmp_path: Path) -> Cores:
    for core in range(4):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/cpufreq"
        folder.mkdir(parents=True)
        if core:  # the first one cannot be taken off line
            (folder.parent / "online").write_text("1")
        (folder / "cpuinfo_min_freq").write_text("800000")
        (folder / "cpuinfo_max_freq").write_text("3000000" if core < 2 else "2000000")
        (folder / "scaling_max_freq").write_text("3000000" if core < 2 else "2000000")
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-3")
    return Cores(tmp_path)


def controller(files: MachineFiles, modes: Sequence[str] = ()) -> CpuFrequencyController:
    return CpuFrequencyController(files, modes, timing=NO_SETTLING)


def test_every_mode_is_switched_to_and_read_back(cores: Cores) -> None:
    power = controller(cores)
    for mode in [*power.modes(), *reversed(power.modes())]:
        assert power.switch(mode.name).mode == mode.name
        assert power.read() == Reading(mode.name)
    assert cores.read(f"{CPU}/online") == "0-3"


def test_slower_cores_are_capped_at_their_maximum(cores: Cores) -> None:
    controller(cores, ["4x2500mhz"]).switch("4x2500mhz")
    caps = [cores.read(f"{CPU}/cpu{core}/cpufreq/scaling_max_freq") for core in range(4)]
    assert caps == ["2500000", "2500000", "2000000", "2000000"]


def test_closing_restores_the_initial_state(cores: Cores) -> None:
    power = controller(cores)
    power.switch("2x1500mhz")
    power.close()
    assert cores.read(f"{CPU}/online") == "0-3"
    assert cores.read(f"{CPU}/cpu0/cpufreq/scaling_max_freq") == "3000000"


def test_a_refusal_by_the_kernel_leaves_the_mode_that_is_read(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    power = controller(cores)
    monkeypatch.setattr(Cores, "stuck", True)
    with pytest.raises(SwitchFailed, match="Device or resource busy") as failed:
        power.switch("2x1500mhz")
    assert failed.value.reading == power.read() == Reading("4x3000mhz")


@pytest.mark.parametrize("name", ["8x1500mhz", "0x1500mhz", "2x9000mhz", "2x100mhz", "fast"])
def test_a_mode_out_of_range_is_refused(cores: Cores, name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        controller(cores, [name])


def test_a_machine_whose_clock_cannot_be_set_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="virtual machines"):
        CpuFrequencyController(MachineFiles(tmp_path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cpu0/cpufreq/cpuinfo_max_freq", ""),
        ("cpu0/cpufreq/cpuinfo_min_freq", "<unknown>"),
        ("cpu2/cpufreq/scaling_max_freq", "-"),
        ("online", "0-"),
        ("online", "0-99999"),
    ],
)
def test_files_without_the_expected_numbers_are_no_clock(
    cores: Cores, name: str, text: str
) -> None:
    cores.path(f"{CPU}/{name}").write_text(text)
    with pytest.raises(NotSupported, match="cannot set the CPU clock: "):
        controller(cores)


def test_steps_that_are_not_listed_as_numbers_are_not_used(cores: Cores) -> None:
    cores.path(f"{CPU}/cpu0/cpufreq/scaling_available_frequencies").write_text("800000 boost")
    assert [mode.name for mode in controller(cores).modes()][:2] == ["4x3000mhz", "4x2250mhz"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cpu3/cpufreq/scaling_max_freq", ""),
        ("cpu3/cpufreq/cpuinfo_max_freq", "?"),
        ("online", "none"),
        ("online", ""),
    ],
)
def test_cores_that_cannot_be_read_any_more_are_in_no_mode(
    cores: Cores, name: str, text: str
) -> None:
    power = controller(cores)
    cores.path(f"{CPU}/{name}").write_text(text)
    reading = power.read()
    assert reading.mode == ""
    assert reading.detail
