"""What the machine draws: power now, and energy since the meter was opened.

Boards measure power with INA3221 chips, x86 machines count energy (RAPL). Where there is
neither, or it may not be read, the meter says so instead of guessing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.errors import NotSupported
from worker_agent.power.files import Files
from worker_agent.power.sensors import BoardRails, Rapl

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from worker_agent.power.sensors import Sensor

_SAMPLE_S: Final = 0.1
_WATCH_S: Final = 0.5
"""In service, where nobody waits for the figures, it is asked less often."""

_log = logging.getLogger(__name__)


class EnergyMeter:
    """Energy that the machine has used since the meter was opened.

    Args:
        sensor: where it comes from.
        clock: monotonic.
    """

    def __init__(self, sensor: Sensor, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = sensor.source
        self._sensor = sensor
        self._clock = clock
        self._begin = sensor.joules(clock())

    def joules(self) -> float:
        """Energy so far, in joules; to be asked often, since power is sampled when it is.

        Raises:
            OSError: the sensor cannot be read any more.
            ValueError: it does not show a number any more.
        """
        return self._sensor.joules(self._clock()) - self._begin


def open_meter(
    files: Files | None = None, clock: Callable[[], float] = time.monotonic
) -> EnergyMeter:
    """The machine's meter.

    Raises:
        NotSupported: it has none that can be read; the message says which were looked for.
    """
    machine = files or Files()
    reasons = []
    for kind in (BoardRails, Rapl):
        try:
            return EnergyMeter(kind(machine), clock)
        except NotSupported as error:
            reasons.append(str(error))
    raise NotSupported(f"power is not measured here: {'; '.join(reasons)}")


class SampledMeter:
    """A meter that a thread asks often, so that sampled power is followed closely.

    Args:
        meter: not to be asked by others before `close`.
        clock: monotonic.
        period_s: how often, in seconds.
    """

    def __init__(
        self, meter: EnergyMeter, clock: Callable[[], float] = time.monotonic, period_s: float = 1.0
    ) -> None:
        self._meter = meter
        self._clock = clock
        self._period_s = period_s
        self._latest: tuple[float, float] | None = (clock(), 0.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="meter", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> tuple[float, float] | None:
        """When it was asked last, and the joules then; None once the sensor has gone away."""
        return self._latest

    def close(self) -> None:
        """Ask no more."""
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        try:
            while not self._over.wait(self._period_s):
                self._latest = self._clock(), self._meter.joules()
        except (OSError, ValueError) as error:
            self._latest = None
            _log.warning("power is not measured any more: %s", error)


@dataclass(frozen=True, slots=True)
class Draw:
    """What the machine draws.

    Attributes:
        watts: mean power since it was read before.
        joules: energy since the meter was opened; it never falls.
    """

    watts: float
    joules: float


class PowerMeter:
    """The machine's power and energy in service; nothing where they are not measured.

    Attributes:
        source: what measures, for people; empty where nothing does.

    Args:
        files: the machine.
        clock: monotonic.
    """

    def __init__(
        self, files: Files | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.source = ""
        self._meter: SampledMeter | None = None
        self._before = (clock(), 0.0)
        self._watts = 0.0
        try:
            meter = open_meter(files, clock)
        except NotSupported as error:
            _log.info("%s", error)
            return
        self.source = meter.source
        _log.info("power is measured by %s", meter.source)
        self._meter = SampledMeter(meter, clock, _WATCH_S)

    def read(self) -> Draw | None:
        """What is drawn now; None where it is not measured, or not any more."""
        latest = None if self._meter is None else self._meter.latest
        if latest is None:
            return None
        (then, before), (now, joules) = self._before, latest
        if now > then:
            self._watts = (joules - before) / (now - then)
            self._before = latest
        return Draw(self._watts, joules)

    def close(self) -> None:
        """Measure no more."""
        if self._meter is not None:
            self._meter.close()


class MeanPower:
    """Mean power over a block of code: ``with MeanPower() as power: …``, then ``power.watts``.

    Attributes:
        watts: mean power once the block is over; 0 where power is not measured.

    Args:
        files: the machine.
        clock: monotonic.
    """

    def __init__(
        self, files: Files | None = None, clock: Callable[[], float] = time.monotonic
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
            self._sampled = SampledMeter(self._meter, self._clock, _SAMPLE_S)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._sampled is None or self._meter is None:
            return
        self._sampled.close()
        seconds = self._clock() - self._begin
        # A sensor that went away has measured nothing.
        with contextlib.suppress(OSError, ValueError):
            self.watts = self._meter.joules() / seconds if seconds > 0 else 0.0
