"""Power and energy meters of the machine.

Boards measure power with INA3221 or similar chips, servers with a power meter; x86 processors and
GPUs count energy (RAPL, NVML). Without a readable sensor, power is reported as unmeasured and never
estimated.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.errors import NotSupported
from worker_agent.power.files import MachineFiles
from worker_agent.power.sensors import HwmonSensor, Ina3221Sensor, NvmlSensor, RaplSensor, SumSensor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Self

    from worker_agent.power.sensors import EnergySensor

_MEASURE_PERIOD_S: Final = 0.1
_SERVICE_PERIOD_S: Final = 0.5
"""Sampling period in service, longer than that of a measurement."""

_log = logging.getLogger(__name__)


class EnergyMeter:
    """Energy consumption of the machine since construction, at the time `began`."""

    def __init__(self, sensor: EnergySensor, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = sensor.source
        self._sensor = sensor
        self._clock = clock
        self.began = clock()
        self._begin = sensor.joules(self.began)

    def sample(self) -> tuple[float, float]:
        """Return the time and the energy so far, in joules; call it often, as it samples power."""
        now = self._clock()
        return now, self._sensor.joules(now) - self._begin


def open_meter(
    files: MachineFiles | None = None,
    clock: Callable[[], float] = time.monotonic,
    gpus: Collection[int] | None = None,
) -> EnergyMeter:
    """Open the first sensor that can be read: of the whole machine, otherwise of its parts.

    Args:
        gpus: numbers of the GPUs that are used, of those that CUDA sees; None for all.

    Raises:
        NotSupported: no sensor can be read.
    """
    reasons = []
    for open_sensor in (Ina3221Sensor, HwmonSensor, partial(_open_parts, gpus=gpus)):
        try:
            return EnergyMeter(open_sensor(files or MachineFiles()), clock)
        except (NotSupported, OSError, ValueError) as error:
            reasons.append(str(error))
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
    """Power and energy of the machine, which a thread samples.

    `source` is empty if power is not measured.
    """

    def __init__(
        self,
        files: MachineFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        gpus: Collection[int] | None = None,
        period_s: float = _SERVICE_PERIOD_S,
    ) -> None:
        self.source = ""
        self._period_s = period_s
        # Time and energy of the latest sample; None without a sensor, or once it has failed.
        self._latest: tuple[float, float] | None = None
        self._stopped = threading.Event()
        try:
            self._meter = open_meter(files, clock, gpus)
        except NotSupported as error:
            _log.info("%s", error)
            return
        self.source = self._meter.source
        _log.info("measuring power with %s", self.source)
        self._before = self._latest = self._meter.began, 0.0
        self._watts = 0.0
        self._thread = threading.Thread(target=self._sample, name="meter", daemon=True)
        self._thread.start()

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

    def close(self) -> float:
        """Stop measuring; return the mean power, or 0 if the sensor has measured nothing."""
        if not self.source:
            return 0.0
        self._stopped.set()
        self._thread.join()
        with contextlib.suppress(OSError, ValueError):
            now, joules = self._meter.sample()
            return joules / (now - self._meter.began) if now > self._meter.began else 0.0
        return 0.0

    def _sample(self) -> None:
        try:
            while not self._stopped.wait(self._period_s):
                self._latest = self._meter.sample()
        except (OSError, ValueError) as error:
            self._latest = None
            _log.warning("stopped measuring power: %s", error)


class MeanPower:
    """Mean power over a block: ``with MeanPower() as power: …``, then ``power.watts``, or 0."""

    def __init__(
        self, files: MachineFiles | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.watts = 0.0
        self._files = files
        self._clock = clock

    def __enter__(self) -> Self:
        self._meter = PowerMeter(self._files, self._clock, period_s=_MEASURE_PERIOD_S)
        return self

    @property
    def is_measured(self) -> bool:
        """Whether the machine has a meter; known within the block."""
        return bool(self._meter.source)

    def __exit__(self, *_: object) -> None:
        self.watts = self._meter.close()
