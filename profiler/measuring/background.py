"""Background load: CPU time that other processes take while an engine is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

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
