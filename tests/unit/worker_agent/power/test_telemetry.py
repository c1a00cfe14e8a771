"""Meters of both boards in both layouts, of x86, and of machines without a sensor."""

from pathlib import Path
from typing import Any, NoReturn

import pytest

from synergai.errors import NotSupported
from tests.emulated_board.board import EmulatedBoard
from tests.emulated_board.kinds import KINDS
from worker_agent.power import telemetry
from worker_agent.power.files import MachineFiles
from worker_agent.power.nvml import VISIBLE, NvmlSensor
from worker_agent.power.sensors import HwmonSensor, Ina3221Sensor, RaplSensor
from worker_agent.power.telemetry import MeanPower, PowerMeter, open_meter

RAPL = "sys/class/powercap/intel-rapl:0"


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
            f"{RAPL}/name": "package-0",
            f"{RAPL}/energy_uj": "9000000",
            f"{RAPL}/max_energy_range_uj": "9999999",
            f"{RAPL}:0/name": "core",
            f"{RAPL}:0/energy_uj": "5",
            f"{RAPL}:0/max_energy_range_uj": "9999999",
        },
    )
    meter = open_meter(files, lambda: 0.0)
    assert meter.source == "RAPL (1 package)"
    files.write(f"/{RAPL}/energy_uj", "1000000")
    assert meter.joules() == pytest.approx(2.0)


def test_the_error_without_sensors_lists_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match=r"INA3221.*RAPL"):
        open_meter(MachineFiles(tmp_path))


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
    with MeanPower(board.files, lambda: now[0]) as power:
        now[0] += 2.0
    assert power.watts == pytest.approx(5.06)
    with MeanPower(MachineFiles(tmp_path / "nothing")) as power:
        pass
    assert power.watts == 0.0


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


# --- hwmon and NVML ---------------------------------------------------------------------

HWMON = "sys/class/hwmon"


def test_power_meter_of_the_whole_machine_is_used_before_its_parts(tmp_path: Path) -> None:
    files = a_machine(
        tmp_path,
        {
            f"{HWMON}/hwmon0/name": "amdgpu",
            f"{HWMON}/hwmon0/power1_average": "90000000",
            f"{HWMON}/hwmon1/name": "power_meter",
            f"{HWMON}/hwmon1/power1_average": "180000000",
            f"{HWMON}/hwmon2/name": "ina226",
            f"{HWMON}/hwmon2/power1_input": "12000000",
            f"{RAPL}/name": "package-0",
            f"{RAPL}/energy_uj": "0",
            f"{RAPL}/max_energy_range_uj": "9999999",
        },
    )
    times = iter([0.0, 2.0])
    meter = open_meter(files, lambda: next(times))
    assert meter.source == "hwmon (power_meter power1)"
    assert meter.joules() == pytest.approx(360.0)


def test_supply_of_a_board_is_the_sum_of_its_meters(tmp_path: Path) -> None:
    sensor = HwmonSensor(
        a_machine(
            tmp_path,
            {
                f"{HWMON}/hwmon0/name": "ina231",
                f"{HWMON}/hwmon0/power1_input": "2500000",
                f"{HWMON}/hwmon1/name": "ina231",
                f"{HWMON}/hwmon1/power1_input": "1500000",
                f"{HWMON}/hwmon1/power1_average": "1000000",
            },
        )
    )
    assert sensor.watts() == pytest.approx(4.0)


def test_meter_without_a_number_is_left_out(tmp_path: Path) -> None:
    files = a_machine(
        tmp_path,
        {f"{HWMON}/hwmon0/name": "power_meter", f"{HWMON}/hwmon0/power1_average": "N/A"},
    )
    with pytest.raises(NotSupported, match="hwmon"):
        HwmonSensor(files)


class FakeNvml:
    """GPUs with energy counters in mJ, or with power in mW only."""

    def __init__(self, *, energies: list[int] | None = None, powers: list[int]) -> None:
        self.energies = energies
        self.powers = powers
        self.fails = False

    def nvmlInit_v2(self) -> int:  # noqa: N802  # the library's name, as below
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.powers)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, device: Any) -> int:  # noqa: N802
        device._obj.value = number + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: bytes, device: Any) -> int:  # noqa: N802
        device._obj.value = int(name.removeprefix(b"GPU-")) + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, value: Any) -> int:  # noqa: N802
        if self.energies is None:
            return 3  # not supported
        value._obj.value = self.energies[device.value - 1]
        return 999 if self.fails else 0

    def nvmlDeviceGetPowerUsage(self, device: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = self.powers[device.value - 1]
        return 0


GPU = {"dev/nvidiactl": ""}


def test_energy_of_gpus_is_the_sum_of_their_counters(tmp_path: Path) -> None:
    library = FakeNvml(energies=[5_000, 1_000_000], powers=[1, 1])
    sensor = NvmlSensor(a_machine(tmp_path, GPU), load=lambda _: library)
    assert sensor.source == "NVML (2 GPUs)"
    assert sensor.joules(0.0) == 0.0
    library.energies = [7_000, 1_003_000]
    assert sensor.joules(1.0) == pytest.approx(5.0)
    library.fails = True
    with pytest.raises(OSError, match="code 999"):
        sensor.joules(2.0)


def test_power_of_gpus_without_a_counter_is_integrated(tmp_path: Path) -> None:
    library = FakeNvml(powers=[40_000])
    sensor = NvmlSensor(a_machine(tmp_path, GPU), load=lambda _: library)
    assert sensor.joules(10.0) == 0.0
    library.powers = [60_000]
    assert sensor.joules(12.0) == pytest.approx(100.0)


def test_machines_without_gpus_or_driver_have_no_such_sensor(tmp_path: Path) -> None:
    def missing(name: str) -> NoReturn:
        raise OSError(f"{name}: cannot open shared object file")

    with pytest.raises(NotSupported, match="no NVIDIA GPU"):
        NvmlSensor(MachineFiles(tmp_path), load=lambda _: FakeNvml(powers=[]))
    with pytest.raises(NotSupported, match=r"cannot load libnvidia-ml\.so\.1"):
        NvmlSensor(a_machine(tmp_path, GPU), load=missing)
    with pytest.raises(NotSupported, match="no NVIDIA GPU is used"):
        NvmlSensor(a_machine(tmp_path, GPU), load=lambda _: FakeNvml(powers=[]))


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
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    gpus: set[int] | None,
    used: set[int],
) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    library = FakeNvml(energies=[0, 0, 0], powers=[1, 1, 1])
    sensor = NvmlSensor(a_machine(tmp_path, GPU), gpus, lambda _: library)
    assert sensor.joules(0.0) == 0.0
    library.energies = [1_000, 10_000, 100_000]
    assert sensor.joules(1.0) == sum(10.0**number for number in used)


def test_processor_and_gpus_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(energies=[0], powers=[1])
    monkeypatch.setattr(
        telemetry, "NvmlSensor", lambda files, gpus: NvmlSensor(files, gpus, lambda _: library)
    )
    files = a_machine(
        tmp_path,
        {
            **GPU,
            f"{RAPL}/name": "package-0",
            f"{RAPL}/energy_uj": "0",
            f"{RAPL}/max_energy_range_uj": "9999999",
        },
    )
    meter = open_meter(files, lambda: 0.0)
    assert meter.source == "RAPL (1 package), NVML (1 GPU)"
    files.write(f"/{RAPL}/energy_uj", "2000000")
    library.energies = [3_000]
    assert meter.joules() == pytest.approx(5.0)
