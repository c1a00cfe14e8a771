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
from typing import TYPE_CHECKING, Final

from synergai.errors import NotSupported
from worker_agent.power.files import MachineFiles
from worker_agent.power.nvml import NvmlSensor
from worker_agent.power.sensors import HwmonSensor, Ina3221Sensor, RaplSensor, SumSensor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Self

    from worker_agent.power.sensors import EnergySensor

_MEASURE_PERIOD_S: Final = 0.1
_SERVICE_PERIOD_S: Final = 0.5
"""Sampling period in service, longer than that of a measurement."""

_log = logging.getLogger(__name__)


class EnergyMeter:
    """Energy consumption of the machine since construction."""

    def __init__(self, sensor: EnergySensor, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = sensor.source
        self._sensor = sensor
        self._clock = clock
        self._begin = sensor.joules(clock())

    def joules(self) -> float:
        """Return the energy so far, in joules; call it often, since each call samples the power."""
        return self._sensor.joules(self._clock()) - self._begin


def open_meter(
    files: MachineFiles | None = None,
    clock: Callable[[], float] = time.monotonic,
    gpus: Collection[int] | None = None,
) -> EnergyMeter:
    """Open the machine's meter; `gpus` as of `NvmlSensor`."""
    return EnergyMeter(_open_sensor(files or MachineFiles(), gpus), clock)


def _open_sensor(files: MachineFiles, gpus: Collection[int] | None) -> EnergySensor:
    """Return the sensor of the whole machine, otherwise of its parts."""
    reasons = []
    processor: EnergySensor | None = None
    for kind in (Ina3221Sensor, HwmonSensor, RaplSensor):
        try:
            processor = kind(files)
            break
        except NotSupported as error:
            reasons.append(str(error))
    if processor is None:
        # Without the processor, the power of the GPUs is that of an unknown part of the machine.
        raise NotSupported(f"power is not measured: {'; '.join(reasons)}")
    if isinstance(processor, RaplSensor):
        with contextlib.suppress(NotSupported):
            return SumSensor((processor, NvmlSensor(files, gpus)))
    return processor


class SampledMeter:
    """Meter that a thread reads periodically; no other code may read it before `close`."""

    def __init__(
        self, meter: EnergyMeter, clock: Callable[[], float] = time.monotonic, period_s: float = 1.0
    ) -> None:
        self._meter = meter
        self._clock = clock
        self._period_s = period_s
        self._latest: tuple[float, float] | None = (clock(), 0.0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="meter", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> tuple[float, float] | None:
        """Time of the latest sample, and its joules; None once the sensor has failed."""
        return self._latest

    def close(self) -> None:
        """Stop sampling."""
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        try:
            while not self._stopped.wait(self._period_s):
                self._latest = self._clock(), self._meter.joules()
        except (OSError, ValueError) as error:
            self._latest = None
            _log.warning("stopped measuring power: %s", error)


@dataclass(frozen=True, slots=True)
class PowerReading:
    """Mean power since the previous reading, and the energy since the meter was opened."""

    watts: float
    joules: float


class PowerMeter:
    """Power and energy of the machine in service; `source` is empty if power is not measured."""

    def __init__(
        self,
        files: MachineFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        gpus: Collection[int] | None = None,
    ) -> None:
        self.source = ""
        self._meter: SampledMeter | None = None
        self._before = (clock(), 0.0)
        self._watts = 0.0
        try:
            meter = open_meter(files, clock, gpus)
        except NotSupported as error:
            _log.info("%s", error)
            return
        self.source = meter.source
        _log.info("measuring power with %s", meter.source)
        self._meter = SampledMeter(meter, clock, _SERVICE_PERIOD_S)

    def read(self) -> PowerReading | None:
        """Return the current reading; None if power is not measured or the sensor has failed."""
        latest = None if self._meter is None else self._meter.latest
        if latest is None:
            return None
        (then, before), (now, joules) = self._before, latest
        if now > then:
            self._watts = (joules - before) / (now - then)
            self._before = latest
        return PowerReading(self._watts, joules)

    def close(self) -> None:
        """Stop measuring."""
        if self._meter is not None:
            self._meter.close()


class MeanPower:
    """Mean power over a block: ``with MeanPower() as power: …``, then ``power.watts``, or 0."""

    def __init__(
        self, files: MachineFiles | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.watts = 0.0
        self._files = files
        self._clock = clock
        self._meter: EnergyMeter | None = None
        self._sampled: SampledMeter | None = None
        self._begin = 0.0

    def __enter__(self) -> Self:
        with contextlib.suppress(NotSupported):
            self._meter = open_meter(self._files, self._clock)
            self._begin = self._clock()
            self._sampled = SampledMeter(self._meter, self._clock, _MEASURE_PERIOD_S)
        return self

    @property
    def is_measured(self) -> bool:
        """Whether the machine has a meter; known within the block."""
        return self._meter is not None

    def __exit__(self, *_: object) -> None:
        if self._sampled is None or self._meter is None:
            return
        self._sampled.close()
        seconds = self._clock() - self._begin
        # A sensor that failed has measured nothing.
        with contextlib.suppress(OSError, ValueError):
            self.watts = self._meter.joules() / seconds if seconds > 0 else 0.0
