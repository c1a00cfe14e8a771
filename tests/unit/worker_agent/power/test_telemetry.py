"""Meters of both boards in both layouts, of x86, and of machines without a sensor."""

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from synergai.errors import NotSupported
from tests.emulated_board.board import EmulatedBoard
from tests.emulated_board.kinds import KINDS
from worker_agent.power.files import MachineFiles
from worker_agent.power.telemetry import (
    VISIBLE,
    Ina3221Sensor,
    NvmlSensor,
    PowerMeter,
    RaplSensor,
    open_sensor,
)

RAPL = "sys/class/powercap/intel-rapl:0"
PACKAGE = {
    f"{RAPL}/name": "package-0",
    f"{RAPL}/energy_uj": "0",
    f"{RAPL}/max_energy_range_uj": "9999999",
}


def a_machine(root: Path, files: dict[str, str]) -> MachineFiles:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return MachineFiles(root)


@pytest.mark.parametrize("jetpack", [4, 5])
@pytest.mark.parametrize(
    ("kind", "rails", "watts"),
    [
        ("agx-xavier", ["GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"], 6.928),  # no common rail
        ("xavier-nx", ["VDD_IN"], 5.06),  # the others are parts of it
    ],
)
def test_board_power_counts_every_rail_once(
    tmp_path: Path, kind: str, rails: list[str], watts: float, jetpack: int
) -> None:
    board = EmulatedBoard.create(KINDS[kind], tmp_path, jetpack)
    sensor = Ina3221Sensor(board.files)
    assert [rail.name for rail in sensor.rails] == rails
    assert sensor.watts() == pytest.approx(watts, abs=0.03)  # newer files have whole mA


def test_rapl_counts_packages_without_their_parts_and_over_a_wrap(tmp_path: Path) -> None:
    files = a_machine(
        tmp_path,
        {
            **PACKAGE,
            f"{RAPL}/energy_uj": "9000000",
            f"{RAPL}:0/name": "core",
            f"{RAPL}:0/energy_uj": "5",
            f"{RAPL}:0/max_energy_range_uj": "9999999",
        },
    )
    sensor = open_sensor(files)
    assert sensor.source == "RAPL (1 package)"
    files.write(f"/{RAPL}/energy_uj", "1000000")
    assert sensor.joules(1.0) == pytest.approx(2.0)


def test_the_error_without_sensors_lists_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match=r"INA3221.*RAPL"):
        open_sensor(MachineFiles(tmp_path))


def test_counters_that_only_root_may_read_are_reported_as_that() -> None:
    class Locked(MachineFiles):
        def read(self, path: str) -> str:
            raise PermissionError(13, "Permission denied", path)

        def find(self, folder: str, pattern: str) -> list[str]:
            return [f"{folder}/{pattern.replace('*', '0')}"]

    with pytest.raises(NotSupported, match="only root can read"):
        RaplSensor(Locked())


def test_mean_power_is_energy_over_time_and_zero_where_it_is_not_measured(tmp_path: Path) -> None:
    board = EmulatedBoard.create(KINDS["xavier-nx"], tmp_path / "nx")
    now = [10.0]
    with PowerMeter(board.files, lambda: now[0]) as power:
        now[0] += 2.0
    assert power.mean_watts == pytest.approx(5.06)
    with PowerMeter(MachineFiles(tmp_path / "nothing")) as power:
        pass
    assert power.mean_watts == 0.0


def test_mean_power_is_the_same_however_long_the_readings_are_delayed(tmp_path: Path) -> None:
    board = EmulatedBoard.create(KINDS["xavier-nx"], tmp_path)
    late = count(10.0, 0.25)  # every reading of the clock is 0.25 s after the one before
    with PowerMeter(board.files, lambda: next(late)) as power:
        pass
    assert power.mean_watts == pytest.approx(5.06)


def test_a_meter_in_service_gives_mean_power_between_readings_and_total_energy(
    tmp_path: Path,
) -> None:
    board = EmulatedBoard.create(KINDS["xavier-nx"], tmp_path / "nx")
    now = [10.0]
    meter = PowerMeter(board.files, lambda: now[0], period_s=0.001)
    try:
        assert meter.source == "INA3221 (VDD_IN)"
        now[0] += 2.0
        while (reading := meter.read()) is None or not reading.joules:
            pass  # its thread has not sampled yet
        assert (reading.watts, reading.joules) == pytest.approx((5.06, 2 * 5.06))
        assert meter.read() == reading
        board.files.path("/sys/bus/i2c/drivers/ina3221x/7-0040/iio:device0").rename(tmp_path / "x")
        while meter.read() is not None:
            pass  # likewise
    finally:
        meter.close()


def test_a_machine_without_a_sensor_has_no_reading(tmp_path: Path) -> None:
    meter = PowerMeter(MachineFiles(tmp_path))
    assert (meter.source, meter.read()) == ("", None)
    meter.close()


# --- NVML -----------------------------------------------------------------------------


class FakeNvml(ModuleType):
    """The module pynvml, with energy counters in mJ, or with power in mW only."""

    class NVMLError(Exception): ...

    def __init__(self, *, energies: list[int] | None = None, powers: list[int]) -> None:
        super().__init__("pynvml")
        self.energies = energies
        self.powers = powers
        self.broken = ""

    def nvmlInit(self) -> None:  # noqa: N802  # the module's name, as below
        self._fail_at("nvmlInit")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._fail_at("nvmlDeviceGetCount")
        return len(self.powers)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:  # noqa: N802
        self._fail_at("nvmlDeviceGetHandleByUUID")
        return int(name.removeprefix("GPU-"))

    def nvmlDeviceGetTotalEnergyConsumption(self, device: int) -> int:  # noqa: N802
        self._fail_at("nvmlDeviceGetTotalEnergyConsumption")
        if self.energies is None:
            raise self.NVMLError("Not Supported")
        return self.energies[device]

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:  # noqa: N802
        self._fail_at("nvmlDeviceGetPowerUsage")
        return self.powers[device]

    def _fail_at(self, name: str) -> None:
        if name == self.broken:
            raise self.NVMLError("GPU is lost")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    """Installs a fake module."""

    def install(**figures: Any) -> FakeNvml:
        fake = FakeNvml(**figures)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return install


GPU = {"dev/nvidiactl": ""}


def test_energy_of_gpus_is_the_sum_of_their_counters(
    tmp_path: Path, nvml: Callable[..., FakeNvml]
) -> None:
    library = nvml(energies=[5_000, 1_000_000], powers=[1, 1])
    sensor = NvmlSensor(a_machine(tmp_path, GPU))
    assert sensor.source == "NVML (2 GPUs)"
    assert sensor.joules(0.0) == 0.0
    library.energies = [7_000, 1_003_000]
    assert sensor.joules(1.0) == pytest.approx(5.0)
    library.broken = "nvmlDeviceGetTotalEnergyConsumption"
    with pytest.raises(OSError, match="GPU is lost"):
        sensor.joules(2.0)


def test_power_of_gpus_without_a_counter_is_integrated(
    tmp_path: Path, nvml: Callable[..., FakeNvml]
) -> None:
    library = nvml(powers=[40_000])
    sensor = NvmlSensor(a_machine(tmp_path, GPU))
    assert sensor.joules(10.0) == 0.0
    library.powers = [60_000]
    assert sensor.joules(12.0) == pytest.approx(100.0)


def test_machines_without_gpus_or_package_have_no_such_sensor(
    tmp_path: Path, nvml: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotSupported, match="there is no NVIDIA GPU"):
        NvmlSensor(MachineFiles(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NotSupported, match="nvidia-ml-py is not installed"):
        NvmlSensor(a_machine(tmp_path, GPU))
    nvml(powers=[])
    with pytest.raises(NotSupported, match="no NVIDIA GPU is used"):
        NvmlSensor(a_machine(tmp_path, GPU))


@pytest.mark.parametrize(
    ("visible", "gpus", "used"),
    [
        (None, None, {0, 1, 2}),
        (None, {1}, {1}),
        ("2,0", None, {0, 2}),
        ("2,0", {0}, {2}),
        ("GPU-1", {0}, {1}),
        ("1,-1,2", None, {1}),
    ],
)
def test_only_gpus_that_are_used_count(
    tmp_path: Path,
    nvml: Callable[..., FakeNvml],
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    gpus: set[int] | None,
    used: set[int],
) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    library = nvml(energies=[0, 0, 0], powers=[1, 1, 1])
    sensor = NvmlSensor(a_machine(tmp_path, GPU), gpus)
    assert sensor.joules(0.0) == 0.0
    library.energies = [1_000, 10_000, 100_000]
    assert sensor.joules(1.0) == sum(10.0**number for number in used)


def test_processor_and_gpus_are_added(tmp_path: Path, nvml: Callable[..., FakeNvml]) -> None:
    library = nvml(energies=[0], powers=[1])
    files = a_machine(tmp_path, {**GPU, **PACKAGE})
    sensor = open_sensor(files)
    assert sensor.source == "RAPL (1 package), NVML (1 GPU)"
    files.write(f"/{RAPL}/energy_uj", "2000000")
    library.energies = [3_000]
    assert sensor.joules(1.0) == pytest.approx(5.0)


# --- sensors that cannot be read --------------------------------------------------------

INA_4 = "sys/bus/i2c/drivers/ina3221x/1-0040/iio:device0"
INA_5 = "sys/bus/i2c/devices/1-0040/hwmon/hwmon3"


@pytest.mark.parametrize(
    "odd",
    [
        {f"{INA_4}/rail_name_0": "GPU", f"{INA_4}/in_power0_input": ""},
        {f"{INA_4}/rail_name_0": "GPU", f"{INA_4}/in_power0_input": "1.5"},
        {f"{INA_4}/rail_name_0": "GPU"},
        {f"{INA_5}/in1_label": "VDD_IN", f"{INA_5}/in1_input": "5000"},
        {f"{INA_5}/in1_label": "VDD_IN", f"{INA_5}/curr1_input": "1", f"{INA_5}/in1_input": "-"},
        {f"{INA_5}/in_label": "VDD_IN"},
    ],
)
def test_a_sensor_that_cannot_be_read_leaves_the_next_one(
    tmp_path: Path, odd: dict[str, str]
) -> None:
    assert open_sensor(a_machine(tmp_path, {**PACKAGE, **odd})).source == "RAPL (1 package)"


@pytest.mark.parametrize(
    "odd",
    [
        {f"{RAPL}/energy_uj": ""},
        {f"{RAPL}/max_energy_range_uj": "unlimited"},
        {"sys/class/powercap/intel-rapl:1/name": "package-1"},
    ],
)
def test_without_a_sensor_that_can_be_read_power_is_not_measured(
    tmp_path: Path, odd: dict[str, str]
) -> None:
    files = a_machine(tmp_path, {**PACKAGE, **odd})
    with PowerMeter(files) as meter:
        assert (meter.source, meter.read()) == ("", None)
    assert meter.mean_watts == 0.0


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByUUID"])
def test_a_driver_that_does_not_answer_leaves_the_processor(
    tmp_path: Path, nvml: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    nvml(energies=[0], powers=[1]).broken = broken
    monkeypatch.setenv(VISIBLE, "GPU-0")
    assert open_sensor(a_machine(tmp_path, {**GPU, **PACKAGE})).source == "RAPL (1 package)"
