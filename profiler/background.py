"""Background load: CPU time that other processes take while an engine is measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

DISTURBED_SHARE: Final = 0.05
"""Share of the machine's CPU time beyond which other processes disturb a measurement.

An idle machine's system services take well below 1 %. At 5 %, a machine of two cores has lost a
tenth of a core, which is as much as estimates are expected to be off.
"""
_PROC: Final = Path("/proc")
_IDLE_FIELDS: Final = (3, 4)
"""Positions of idle and iowait in the ``cpu`` line of ``/proc/stat``."""
_FIELDS: Final = 8
"""Fields of that line that add up to its total; those behind repeat guests' time."""
_UTIME: Final = 11
"""Position of utime in ``/proc/PID/stat`` behind the process name; stime follows."""


class _Ticks(NamedTuple):
    """Clock ticks since boot, over all CPUs."""

    busy: int
    total: int
    own: int


class BackgroundLoad:
    """Measures the background load between entering and leaving; a context manager.

    Time that the hypervisor takes from a virtual machine counts as other processes' time.

    Args:
        own: ids of the processes whose CPU time is not counted.
        proc: the mounted ``proc`` file system.

    Attributes:
        share: CPU time of all other processes, as a share of the machine's, 0 to 1; 0 if it
            cannot be read.
    """

    def __init__(self, own: Sequence[int], proc: Path = _PROC) -> None:
        self._own = own
        self._proc = proc
        self._before: _Ticks | None = None
        self.share = 0.0

    def __enter__(self) -> Self:
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        after = self._read()
        if self._before is None or after is None or after.total <= self._before.total:
            return
        others = (after.busy - self._before.busy) - (after.own - self._before.own)
        self.share = max(0.0, others / (after.total - self._before.total))

    def _read(self) -> _Ticks | None:
        try:
            fields = (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:]
            own = sum(map(self._process_ticks, self._own))
        except (OSError, ValueError):
            return None
        ticks = [int(field) for field in fields[:_FIELDS]]
        total = sum(ticks)
        return _Ticks(total - sum(ticks[at] for at in _IDLE_FIELDS), total, own)

    def _process_ticks(self, pid: int) -> int:
        # The name, in parentheses, may contain spaces.
        fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return int(fields[_UTIME]) + int(fields[_UTIME + 1])
