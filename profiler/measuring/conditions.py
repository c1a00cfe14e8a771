"""Conditions of a measurement: clocks, temperature, throttling and background load of the machine.

Values that the kernel does not report stay 0; in a virtual machine, these are usually all.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from worker_agent.power.files import MachineFiles


_CPU: Final = "/sys/devices/system/cpu"
_THERMAL: Final = "/sys/class/thermal"
_PERIOD_S: Final = 0.2
_PROCESSOR_ZONES: Final = ("cpu", "x86_pkg_temp", "coretemp", "k10temp")
_PROCESSOR_COOLING: Final = ("cpufreq", "processor")
THROTTLED_SHARE: Final = 0.05
"""Share of throttling beyond which it is reported to people."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of the machine over some time; 0 if unknown.

    Attributes:
        clock_mhz: mean clock of the fastest core.
        temperature_c: highest temperature of the processor.
        throttled: share of the time in which clocks were limited by heat or power, 0 to 1.
    """

    clock_mhz: float = 0.0
    lowest_clock_mhz: float = 0.0
    temperature_c: float = 0.0
    throttled: float = 0.0


@dataclass(frozen=True, slots=True)
class _Sample:
    clock_mhz: float
    temperature_c: float
    cap_mhz: float
    throttles: int
    cooled: bool


class ConditionsMonitor:
    """Watches the conditions between entering and leaving; a context manager.

    Throttling is a rising counter of the processor, an active cooling device that slows it down,
    or a cap of the clock that has fallen since the beginning.

    Attributes:
        conditions: the conditions, set at the end.
    """

    def __init__(self, files: MachineFiles) -> None:
        self._files = files
        self._clocks = files.find(_CPU, "cpu[0-9]*/cpufreq/scaling_cur_freq")
        self._caps = files.find(_CPU, "cpu[0-9]*/cpufreq/scaling_max_freq")
        self._counters = files.find(_CPU, "cpu[0-9]*/thermal_throttle/*_throttle_count")
        self._zones = self._of_type("thermal_zone*", _PROCESSOR_ZONES, "temp")
        self._cooling = self._of_type("cooling_device*", _PROCESSOR_COOLING, "cur_state")
        self._samples: list[_Sample] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="conditions", daemon=True)
        self.conditions = Conditions()

    def __enter__(self) -> Self:
        self._samples.append(self._sample())
        if any((self._clocks, self._caps, self._counters, self._zones, self._cooling)):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._samples.append(self._sample())
        self.conditions = summarize(self._samples)

    def _watch(self) -> None:
        while not self._stopped.wait(_PERIOD_S):
            self._samples.append(self._sample())

    def _sample(self) -> _Sample:
        return _Sample(
            clock_mhz=max(self._numbers(self._clocks), default=0) / 1000,
            temperature_c=max(0, *self._numbers(self._zones), 0) / 1000,
            cap_mhz=max(self._numbers(self._caps), default=0) / 1000,
            throttles=sum(self._numbers(self._counters)),
            cooled=any(self._numbers(self._cooling)),
        )

    def _of_type(self, pattern: str, kinds: tuple[str, ...], name: str) -> list[str]:
        """Return a file of each thermal device whose type has one of these in its name."""
        found = []
        for path in self._files.find(_THERMAL, f"{pattern}/type"):
            try:
                kind = self._files.read(path).lower()
            except OSError:
                continue
            if any(each in kind for each in kinds):
                found.append(path.removesuffix("type") + name)
        return found

    def _numbers(self, paths: list[str]) -> list[int]:
        """Return the numbers in files, without those that cannot be read, as of offline cores."""
        numbers = []
        for path in paths:
            with suppress(OSError, ValueError):
                numbers.append(int(self._files.read(path)))
        return numbers


def top_mhz(files: MachineFiles) -> float:
    """Return the highest clock of the machine's cores; 0 if it is not known."""
    highest = 0
    for path in files.find(_CPU, "cpu[0-9]*/cpufreq/cpuinfo_max_freq"):
        with suppress(OSError, ValueError):
            highest = max(highest, int(files.read(path)))
    return highest / 1000


def summarize(samples: list[_Sample]) -> Conditions:
    """Return the conditions that samples in order show; the first one is the reference."""
    first, *later = samples
    limited = 0
    before = first
    for sample in later:
        limited += (
            sample.throttles > before.throttles or sample.cooled or sample.cap_mhz < first.cap_mhz
        )
        before = sample
    # The first sample is from before the load.
    clocks = [each.clock_mhz for each in later if each.clock_mhz] or [0.0]
    return Conditions(
        clock_mhz=fmean(clocks),
        lowest_clock_mhz=min(clocks),
        temperature_c=max(each.temperature_c for each in samples),
        throttled=limited / len(later) if later else 0.0,
    )


DISTURBED_SHARE: Final = 0.05
"""Share of the machine's CPU time beyond which other processes disturb a measurement.

An idle machine's system services take well below 1 %. At 5 %, a machine of two cores has lost a
tenth of a core, which is as much as estimates are expected to be off.
"""
_PROC: Final = Path("/proc")
_IDLE_FIELDS: Final = slice(4, 6)
"""Positions of idle and iowait in the ``cpu`` line of ``/proc/stat``."""
_UTIME: Final = 11
"""Position of utime in ``/proc/PID/stat`` behind the process name; stime follows."""


class _Reading(NamedTuple):
    """CPU seconds since boot, over all CPUs."""

    available: float
    idle: float
    own: float


class BackgroundLoad:
    """Measures the background load between entering and leaving; a context manager.

    Time that the hypervisor takes from a virtual machine is other processes' time.

    All time that was not idle was used. The kernel measures idle time exactly, but samples
    what its CPUs did otherwise at each clock tick. Samples of a process that a CPU quota stops and
    resumes in step with the clock can add up to twice the time that it used.

    Args:
        own: ids of the processes whose CPU time is not counted.
        proc: the mounted ``proc`` file system.

    Attributes:
        share: CPU time of all other processes, as a share of the machine's, 0 to 1; 0 if it
            cannot be read.
    """

    def __init__(
        self,
        own: Sequence[int],
        proc: Path = _PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._proc = proc
        self._clock = clock
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._before: _Reading | None = None
        self.share = 0.0

    def __enter__(self) -> Self:
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        before, after = self._before, self._read()
        if before is None or after is None or after.available <= before.available:
            return
        available = after.available - before.available
        others = available - (after.idle - before.idle) - (after.own - before.own)
        self.share = min(1.0, max(0.0, others / available))

    def _read(self) -> _Reading | None:
        try:
            machine, *lines = (self._proc / "stat").read_text().splitlines()
            now = self._clock()
            idle = sum(map(int, machine.split()[_IDLE_FIELDS]))
            own = sum(map(self._process_ticks, self._own))
        except (OSError, ValueError):
            return None
        cpus = sum(line.startswith("cpu") for line in lines)
        return _Reading(now * cpus, idle * self._tick_s, own * self._tick_s)

    def _process_ticks(self, pid: int) -> int:
        # The name, in parentheses, may contain spaces.
        fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return int(fields[_UTIME]) + int(fields[_UTIME + 1])
