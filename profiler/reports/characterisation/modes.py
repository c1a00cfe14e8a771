"""Limits that a power mode sets, as far as they are known.

A dictionary has the names of modes only. The limits of the boards of the thesis are in its Table
5.2; other names state some of them, such as ``4x1200mhz``, ``0.5cpu`` or ``MODE_15W_4CORE``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from profiler.reports.printed import MODES

if TYPE_CHECKING:
    from synergai.domain import WorkerClass

_CPUFREQ: Final = re.compile(r"(\d+)x(\d+)mhz")
_CGROUP: Final = re.compile(r"(\d+(?:\.\d+)?)cpu(?:_on_.*)?")
_NVPMODEL: Final = re.compile(r"MODE_(\d+)W(?:_(\d+)CORE|_.*)?")
_BOARDS: Final = {"agx": "agx", "agx-xavier": "agx", "nx": "nx", "xavier-nx": "nx"}
"""Boards of the thesis by worker class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a power mode; None where they are not known.

    Attributes:
        mhz: largest clock of the CPU.
        cores: cores online, or the share of CPU time in cores.
        unlimited: whether the mode is known to have no power budget.
    """

    mhz: float | None = None
    cores: float | None = None
    watts: float | None = None
    unlimited: bool = False


def limits_of(worker_class: WorkerClass, mode: str) -> Limits:
    """Return the limits of a mode of a worker class."""
    board = _BOARDS.get(worker_class)
    for known in MODES:
        if known.board == board and mode in (known.name, str(known.number)):
            return Limits(
                mhz=known.mhz, cores=known.cores, watts=known.watts, unlimited=known.watts is None
            )
    if found := _CPUFREQ.fullmatch(mode):
        return Limits(cores=float(found[1]), mhz=float(found[2]))
    if found := _CGROUP.fullmatch(mode):
        return Limits(cores=float(found[1]))
    if found := _NVPMODEL.fullmatch(mode):
        return Limits(watts=float(found[1]), cores=float(found[2]) if found[2] else None)
    return Limits()


def mode_order(mode: str) -> tuple[float, str]:
    """Return the key that sorts modes: numbers by value, then names."""
    return (float(mode), mode) if mode.isdecimal() else (float("inf"), mode)


def mode_name(mode: str) -> str:
    """Return how figures call a mode: ``mode 6`` for a number, otherwise its name."""
    return f"mode {mode}" if mode.isdecimal() else mode
