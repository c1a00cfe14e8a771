"""Power and energy meters of the machine.

Jetson boards measure power with INA3221 chips; x86 processors and GPUs count energy (RAPL, NVML).
Without a readable sensor, power is reported as unmeasured and never estimated.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from synergai.errors import NotSupported
from worker_agent.power.files import MachineFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_JETPACK_4: Final = "/sys/bus/i2c/drivers/ina3221x"
_JETPACK_5: Final = "/sys/bus/i2c/devices"
_RAPL: Final = "/sys/class/powercap"
_NVIDIA: Final = "/dev/nvidiactl"
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
"""Variable with the numbers or UUIDs of the GPUs that CUDA uses, which counts only these."""
_BOARD_TOTAL: Final = "VDD_IN"
_CHANNELS: Final = 3
"""Channels of an INA3221; newer drivers list sums as further channels."""
MEASURE_PERIOD_S: Final = 0.1
_SERVICE_PERIOD_S: Final = 0.5
"""Sampling period in service, longer than that of a measurement."""

_log = logging.getLogger(__name__)


class EnergySensor(Protocol):
    """Source of the machine's energy consumption."""

    source: str

    def joules(self, now: float) -> float:
        """Return the energy up to `now`, in joules from an arbitrary origin; monotonic."""


@dataclass(frozen=True, slots=True)
class Rail:
    """One supply rail of a board: a file in mW, or two in mV and mA."""

    name: str
    paths: tuple[str, ...]

    def watts(self, files: MachineFiles) -> float:
        values = [int(files.read(path)) for path in self.paths]
        return values[0] / 1000 if len(values) == 1 else values[0] * values[1] / 1_000_000


class Ina3221Sensor:
    """INA3221 chips of a Jetson board, whose rails' power is sampled and integrated to energy."""

    def __init__(self, files: MachineFiles) -> None:
        try:
            rails = _rails_of_jetpack_4(files) or _rails_of_jetpack_5(files)
        except OSError as error:
            raise NotSupported(f"cannot read a power sensor: {error}") from error
        # A rail for the whole board includes the others.
        self.rails = [rail for rail in rails if rail.name == _BOARD_TOTAL] or rails
        if not self.rails:
            raise NotSupported("no INA3221 power sensor is readable")
        self.source = f"INA3221 ({' + '.join(rail.name for rail in self.rails)})"
        self._files = files
        self._joules = 0.0
        self._last: tuple[float, float] | None = None

    def watts(self) -> float:
        return sum(rail.watts(self._files) for rail in self.rails)

    def joules(self, now: float) -> float:
        """See `EnergySensor.joules`; accuracy depends on the sampling rate (trapezoidal rule)."""
        watts = self.watts()
        if self._last is not None:
            then, before = self._last
            self._joules += (now - then) * (watts + before) / 2
        self._last = (now, watts)
        return self._joules


class RaplSensor:
    """Energy counters of x86 processors, one per package."""

    def __init__(self, files: MachineFiles) -> None:
        self._files = files
        # intel-rapl:0 is a package; intel-rapl:0:1 is a part of it and included in its counter.
        folders = [p for p in files.find(_RAPL, "intel-rapl:*") if p.count(":") == 1]
        try:
            self._ranges = {
                f"{folder}/energy_uj": int(files.read(f"{folder}/max_energy_range_uj"))
                for folder in folders
                if files.read(f"{folder}/name").startswith("package")
            }
            self._last = {path: int(files.read(path)) for path in self._ranges}
        except PermissionError as error:
            raise NotSupported(f"only root can read {_RAPL}") from error
        except (OSError, ValueError) as error:
            raise NotSupported(f"cannot read {_RAPL}: {error}") from error
        if not self._ranges:
            raise NotSupported("the processor has no RAPL energy counters")
        self.source = f"RAPL ({len(self._ranges)} package{'s' * (len(self._ranges) > 1)})"
        self._microjoules = 0

    def joules(self, now: float) -> float:  # noqa: ARG002  # counters need no time
        """See `EnergySensor.joules`; call it once a minute, before a counter can wrap twice."""
        for path, counter_range in self._ranges.items():
            count = int(self._files.read(path))
            self._microjoules += (count - self._last[path]) % (counter_range + 1)
            self._last[path] = count
        return self._microjoules / 1e6


class NvmlSensor:
    """The GPUs that are used: their energy counters, or their sampled power where they have none.

    GPUs before the Volta generation have no counter.
    """

    def __init__(self, files: MachineFiles, gpus: Collection[int] | None = None) -> None:
        if not files.exists(_NVIDIA):
            raise NotSupported("there is no NVIDIA GPU")
        try:
            import pynvml  # takes 18 MB
        except ImportError as error:
            raise NotSupported("the package nvidia-ml-py is not installed") from error
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            visible = enumerate(self._visible())
            self._devices = [each for number, each in visible if gpus is None or number in gpus]
            self._counts = [self._has_counter(device) for device in self._devices]
        except pynvml.NVMLError as error:
            raise NotSupported(f"cannot read the power of NVIDIA GPUs: {error}") from error
        if not self._devices:
            raise NotSupported("no NVIDIA GPU is used")
        self._joules = [0.0] * len(self._devices)
        self._last: list[tuple[float, float] | None] = [None] * len(self._devices)
        count = len(self._devices)
        self.source = f"NVML ({count} GPU{'s' * (count > 1)})"

    def joules(self, now: float) -> float:
        """See `EnergySensor.joules`; sampled power is integrated (trapezoidal rule)."""
        for number, counts in enumerate(self._counts):
            value, last = self._read(number), self._last[number]
            if last is not None:
                then, before = last
                self._joules[number] += (
                    value - before if counts else (now - then) * (value + before) / 2
                )
            self._last[number] = (now, value)
        return sum(self._joules)

    def _visible(self) -> list[Any]:
        """Return the GPUs that CUDA sees, in its order."""
        count = self._nvml.nvmlDeviceGetCount()
        names = os.environ.get(VISIBLE, ",".join(map(str, range(count))))
        devices = []
        for name in map(str.strip, names.split(",")):
            if name.isdecimal() and int(name) < count:
                devices.append(self._nvml.nvmlDeviceGetHandleByIndex(int(name)))
            elif name.startswith("GPU-"):
                devices.append(self._nvml.nvmlDeviceGetHandleByUUID(name))
            else:
                break  # as CUDA does
        return devices

    def _has_counter(self, device: Any) -> bool:
        try:
            self._nvml.nvmlDeviceGetTotalEnergyConsumption(device)
        except self._nvml.NVMLError:
            return False
        return True

    def _read(self, number: int) -> float:
        """Return the energy so far in joules, or the present power in watts."""
        nvml, counts = self._nvml, self._counts[number]
        read = nvml.nvmlDeviceGetTotalEnergyConsumption if counts else nvml.nvmlDeviceGetPowerUsage
        try:
            return float(read(self._devices[number])) / 1000
        except nvml.NVMLError as error:
            raise OSError(f"cannot read the power of an NVIDIA GPU: {error}") from error


class SumSensor:
    """Several sensors that measure different parts."""

    def __init__(self, sensors: Sequence[EnergySensor]) -> None:
        self._sensors = tuple(sensors)
        self.source = ", ".join(sensor.source for sensor in sensors)

    def joules(self, now: float) -> float:
        return sum(sensor.joules(now) for sensor in self._sensors)


def _rails_of_jetpack_4(files: MachineFiles) -> list[Rail]:
    return [
        Rail(files.read(name), (name.replace("rail_name_", "in_power") + "_input",))
        for name in files.find(_JETPACK_4, "*/iio:device*/rail_name_[0-2]")
    ]


def _rails_of_jetpack_5(files: MachineFiles) -> list[Rail]:
    rails = []
    for label in files.find(_JETPACK_5, "*-004[0-3]/hwmon/hwmon*/in*_label"):
        folder, _, name = label.rpartition("/")
        channel = int(name.removeprefix("in").removesuffix("_label"))
        rail = files.read(label)
        if channel <= _CHANNELS and rail != "NC":
            rails.append(
                Rail(rail, (f"{folder}/in{channel}_input", f"{folder}/curr{channel}_input"))
            )
    return rails


def open_sensor(files: MachineFiles, gpus: Collection[int] | None = None) -> EnergySensor:
    """Open the first sensor that can be read: of the whole machine, otherwise of its parts.

    Args:
        gpus: numbers of the GPUs that are used, of those that CUDA sees; None for all.
    """
    reasons = []
    for find in (Ina3221Sensor, partial(_open_parts, gpus=gpus)):
        try:
            sensor: EnergySensor = find(files)
            sensor.joules(0.0)
        except (NotSupported, OSError, ValueError) as error:
            reasons.append(str(error))
        else:
            return sensor
    raise NotSupported(f"power is not measured: {'; '.join(reasons)}")


def _open_parts(files: MachineFiles, gpus: Collection[int] | None) -> EnergySensor:
    # Without the processor, the power of the GPUs is that of an unknown part of the machine.
    processor = RaplSensor(files)
    with contextlib.suppress(NotSupported):
        return SumSensor((processor, NvmlSensor(files, gpus)))
    return processor


@dataclass(frozen=True, slots=True)
class PowerReading:
    """Mean power since the previous reading, and the energy since the meter was opened."""

    watts: float
    joules: float


class PowerMeter:
    """Power and energy of the machine, which a thread samples; a context manager.

    Attributes:
        source: the sensors; empty if power is not measured.
        mean_watts: mean power, once it is closed; 0 if the sensors have measured nothing.
    """

    def __init__(
        self,
        files: MachineFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        gpus: Collection[int] | None = None,
        period_s: float = _SERVICE_PERIOD_S,
    ) -> None:
        self.source = ""
        self.mean_watts = 0.0
        self._clock = clock
        self._period_s = period_s
        # Time and energy of the latest sample; None without a sensor, or once it has failed.
        self._latest: tuple[float, float] | None = None
        self._stopped = threading.Event()
        try:
            self._sensor = open_sensor(files or MachineFiles(), gpus)
            self._began = clock()
            self._begin = self._sensor.joules(self._began)
        except (NotSupported, OSError, ValueError) as error:
            _log.info("%s", error)
            return
        self.source = self._sensor.source
        _log.info("measuring power with %s", self.source)
        self._before = self._latest = self._began, 0.0
        self._watts = 0.0
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> PowerReading | None:
        """Return the current reading; None if power is not measured or the sensor has failed."""
        latest = self._latest
        if latest is None:
            return None
        (then, before), (now, joules) = self._before, latest
        if now > then:
            self._watts = (joules - before) / (now - then)
            self._before = latest
        return PowerReading(self._watts, joules)

    def close(self) -> None:
        if not self.source:
            return
        self._stopped.set()
        self._thread.join()
        with contextlib.suppress(OSError, ValueError):
            now, joules = self._sample()
            if now > self._began:
                self.mean_watts = joules / (now - self._began)

    def _sample(self) -> tuple[float, float]:
        now = self._clock()
        return now, self._sensor.joules(now) - self._begin

    def _watch(self) -> None:
        try:
            while not self._stopped.wait(self._period_s):
                self._latest = self._sample()
        except (OSError, ValueError) as error:
            self._latest = None
            _log.warning("stopped measuring power: %s", error)
