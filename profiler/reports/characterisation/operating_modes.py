"""Questions 4 and 5: how power modes, and the limits they set, affect performance.

In each mode an engine is taken with its best thread count (thesis, Figures 5.3 to 5.5).

A dictionary has the names of modes only. The limits of the boards of the thesis are in its Table
5.2; other names state some of them, such as ``4x1200mhz``, ``0.5cpu`` or ``MODE_15W_4CORE``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from profiler.reports.printed import MODES
from profiler.reports.statistics import LEAST_POINTS, Distribution, mean, partial_correlation
from synergai.profiles.dictionary import DISTURBED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from profiler.reports.characterisation.fleet_profile import FleetProfile
    from synergai.domain import EngineName, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry

KNOBS: Final = ("clock", "cores", "budget")
MAXN: Final = math.inf
"""Power budget of a mode without one."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSummary:
    """A power mode over all engines.

    Attributes:
        behind: mean QPS of the best mode over this one's, over the engines measured in both.
    """

    mode: str
    limits: Limits
    entries: Mapping[EngineName, ProfileEntry]
    qps: Distribution
    total_s: Distribution
    behind: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobValue:
    """A value of a limit, over all engines and the modes that have it.

    Attributes:
        qps: queries per second over engines and modes.
        gain: QPS over that at the knob's smallest value: mean over engines of the ratio of means.
    """

    value: float
    qps: Distribution
    gain: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A limit that modes of a class differ in.

    Attributes:
        name: ``clock``, ``cores`` or ``budget``.
        values: ascending; a budget without limit comes last.
        pearson: correlation of its logarithm with that of QPS relative to the engine's mean over
            modes; None if it is undefined, or of fewer than `LEAST_POINTS` modes. Modes without a
            power budget and disturbed measurements are left out.
        partial: the same with the other limits held constant; None if these determine it.
    """

    name: str
    values: tuple[KnobValue, ...]
    pearson: float | None
    partial: float | None

    @property
    def is_unlimited(self) -> bool:
        """Whether a mode has no limit, which the correlations leave out."""
        return any(math.isinf(each.value) for each in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeComparison:
    """The power modes of a worker class.

    Attributes:
        best: the mode with the highest mean QPS over the engines that all modes have.
        knobs: limits that are known for all modes and differ.
    """

    worker_class: WorkerClass
    modes: tuple[ModeSummary, ...]
    best: ModeSummary
    worst: ModeSummary
    knobs: tuple[Knob, ...]


def limits_of(worker_class: WorkerClass, mode: str) -> Limits:
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


def compare_modes(space: FleetProfile) -> list[ModeComparison]:
    """Compare the modes of every class that has several with an engine in common."""
    return [c for name in space.classes if (c := _compare(space, name)) is not None]


def _compare(space: FleetProfile, name: WorkerClass) -> ModeComparison | None:
    table: dict[str, dict[EngineName, ProfileEntry]] = {}
    for entry in space.measured:
        mode = entry.configuration.power_mode
        if entry.worker_class == name and mode:
            row = table.setdefault(mode, {})
            if entry.engine not in row or row[entry.engine].qps < entry.qps:
                row[entry.engine] = entry
    if len(table) < 2:
        return None
    shared = set.intersection(*(set(row) for row in table.values()))
    if not shared:
        return None
    means = {mode: mean(row[e].qps for e in shared) or 0.0 for mode, row in table.items()}
    best = max(table, key=lambda mode: means[mode])
    modes = {
        m: _summarize(space, name, m, table[m], table[best]) for m in sorted(table, key=mode_order)
    }
    return ModeComparison(
        worker_class=name,
        modes=tuple(modes.values()),
        best=modes[best],
        worst=modes[min(table, key=lambda mode: means[mode])],
        knobs=tuple(knob for knob in (_knob(n, modes) for n in KNOBS) if knob),
    )


def _summarize(
    space: FleetProfile,
    name: WorkerClass,
    mode: str,
    row: Mapping[EngineName, ProfileEntry],
    best: Mapping[EngineName, ProfileEntry],
) -> ModeSummary:
    shared = [engine for engine in row if engine in best]
    ours, theirs = mean(row[e].qps for e in shared), mean(best[e].qps for e in shared)
    return ModeSummary(
        mode=mode,
        limits=_limits(name, mode, row.values()),
        entries=row,
        qps=Distribution.of(entry.qps for entry in row.values()),
        total_s=Distribution.of(map(space.total_time_s, row.values())),
        behind=theirs / ours if ours and theirs else math.nan,
    )


def _limits(name: WorkerClass, mode: str, entries: Collection[ProfileEntry]) -> Limits:
    """Return a mode's limits, with the measured clock if its largest one is not known."""
    limits = limits_of(name, mode)
    clocks = [entry.clock_mhz for entry in entries if entry.clock_mhz]
    if limits.mhz is None and len(clocks) == len(entries):
        return replace(limits, mhz=round(sum(clocks) / len(clocks), -1))
    return limits


def _value(knob: str, limits: Limits) -> float | None:
    if knob == "clock":
        return limits.mhz
    if knob == "cores":
        return limits.cores
    return MAXN if limits.unlimited else limits.watts


def _knob(name: str, modes: Mapping[str, ModeSummary]) -> Knob | None:
    """Return what a limit does; None if it is unknown for a mode or the same for all."""
    groups: dict[float, list[ModeSummary]] = {}
    for summary in modes.values():
        value = _value(name, summary.limits)
        if value is None:
            return None
        groups.setdefault(value, []).append(summary)
    if len(groups) < 2:
        return None
    ordered = dict(sorted(groups.items()))
    least = next(iter(ordered))
    values = []
    for value, summaries in ordered.items():
        qps = Distribution.of(e.qps for s in summaries for e in s.entries.values())
        values.append(KnobValue(value=value, qps=qps, gain=_gain(summaries, ordered[least])))
    others = [other for other in KNOBS if other != name]
    return Knob(
        name=name,
        values=tuple(values),
        pearson=_correlation(name, (), modes.values()),
        partial=_correlation(name, others, modes.values()),
    )


def _gain(summaries: list[ModeSummary], least: list[ModeSummary]) -> float | None:
    """Return the mean over engines of mean QPS over mean QPS at the smallest value."""
    ours, theirs = _mean_by_engine(summaries), _mean_by_engine(least)
    return mean(ours[engine] / theirs[engine] for engine in ours if engine in theirs)


def _mean_by_engine(summaries: list[ModeSummary]) -> dict[EngineName, float]:
    values: dict[EngineName, list[float]] = {}
    for summary in summaries:
        for engine, entry in summary.entries.items():
            values.setdefault(engine, []).append(entry.qps)
    return {engine: sum(each) / len(each) for engine, each in values.items()}


def _correlation(
    name: str, others: Collection[str], modes: Collection[ModeSummary]
) -> float | None:
    """Return the correlation of a limit with QPS, in logarithms, engines made comparable.

    Others are held constant if they are known and differ.
    """
    known = [mode for mode in modes if _is_finite(name, mode)]
    values = {_value(name, mode.limits) for mode in known}
    if len(known) < LEAST_POINTS or len(values) < 2:
        return None
    held = [
        other
        for other in others
        if all(_is_finite(other, mode) for mode in known)
        and len({_value(other, mode.limits) for mode in known}) > 1
    ]
    points: dict[EngineName, list[list[float]]] = {}
    for mode in known:
        limits = [math.log(_value(knob, mode.limits) or 1.0) for knob in (name, *held)]
        for engine, entry in mode.entries.items():
            if entry.label != DISTURBED:
                points.setdefault(engine, []).append([math.log(entry.qps), *limits])
    rows = [
        np.array(each) - np.mean(each, axis=0)
        for each in points.values()
        if len(each) >= LEAST_POINTS
    ]
    if not rows:
        return None
    ys, xs, *rest = np.concatenate(rows).T.tolist()
    return partial_correlation(xs, ys, rest)


def _is_finite(name: str, mode: ModeSummary) -> bool:
    value = _value(name, mode.limits)
    return value is not None and 0 < value < math.inf
