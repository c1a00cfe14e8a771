"""Questions 2 and 3: how performance scales with threads (thesis, Figure 5.2).

Thread counts are compared with everything else equal: in the power mode, on the execution provider
and with the variant with which an engine was measured with most thread counts; of several, with the
fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from profiler.reports.statistics import LEAST_POINTS, mean, pearson
from synergai.profiles.dictionary import DISTURBED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiler.reports.characterisation.fleet_profile import FleetProfile
    from synergai.domain import Configuration, EngineName, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry

NEAR_BEST: Final = 0.95
"""Share of the best QPS from which a thread count is near the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineScaling:
    """An engine over thread counts.

    Attributes:
        qps: QPS over that with the fewest threads.
        total: total time with the fewest threads over that time.
        t_pre_reduction: largest part of T_pre that more threads save; None without T_pre.
        pearson: correlation of threads and QPS without disturbed measurements; None if it is
            undefined, or of fewer than `LEAST_POINTS`.
        near_best: smallest thread count with at least `NEAR_BEST` of the highest QPS.
    """

    engine: EngineName
    entries: Mapping[int, ProfileEntry]
    qps: Mapping[int, float]
    total: Mapping[int, float]
    t_pre_reduction: float | None
    pearson: float | None
    best: int
    near_best: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadScaling:
    """A worker class over thread counts.

    Attributes:
        levels: thread counts that occur, ascending.
        base: the smallest of them.
        qps: mean speed-up of QPS by thread count, over the engines measured with `base` threads.
        pearson: mean correlation of threads and QPS over engines; None if all are undefined.
        t_pre_reduction: largest over engines.
    """

    worker_class: WorkerClass
    engines: tuple[EngineScaling, ...]
    levels: tuple[int, ...]
    base: int
    qps: Mapping[int, float]
    total: Mapping[int, float]
    pearson: float | None
    t_pre_reduction: float | None

    @property
    def near_best(self) -> int:
        """Smallest thread count whose mean speed-up is at least `NEAR_BEST` of the largest."""
        highest = max(self.qps.values())
        return min(level for level, each in self.qps.items() if each >= NEAR_BEST * highest)


def scale_threads(space: FleetProfile) -> list[ThreadScaling]:
    """Return the scaling of every class on which thread counts were compared."""
    scalings = []
    for name in space.classes:
        engines = [s for engine in space.engines if (s := _scale(space, engine, name)) is not None]
        if engines:
            scalings.append(_summarize(name, tuple(engines)))
    return scalings


def _scale(space: FleetProfile, engine: EngineName, name: WorkerClass) -> EngineScaling | None:
    groups: dict[Configuration, dict[int, ProfileEntry]] = {}
    for entry in space.row(engine, name):
        configuration = entry.configuration
        if configuration.threads:
            groups.setdefault(replace(configuration, threads=0), {})[configuration.threads] = entry
    if not groups:
        return None
    entries = max(
        groups.values(), key=lambda group: (len(group), max(e.qps for e in group.values()))
    )
    entries = dict(sorted(entries.items()))
    if len(entries) < 2:
        return None
    first = next(iter(entries.values()))
    highest = max(entry.qps for entry in entries.values())
    base_s = space.total_time_s(first)
    quiet = {level: each.qps for level, each in entries.items() if each.label != DISTURBED}
    return EngineScaling(
        engine=engine,
        entries=entries,
        qps={level: entry.qps / first.qps for level, entry in entries.items()},
        total={level: base_s / space.total_time_s(entry) for level, entry in entries.items()},
        t_pre_reduction=max(1 - e.t_pre_s / first.t_pre_s for e in entries.values())
        if first.t_pre_s
        else None,
        pearson=pearson(*zip(*quiet.items(), strict=True)) if len(quiet) >= LEAST_POINTS else None,
        best=max(entries, key=lambda level: entries[level].qps),
        near_best=min(level for level, e in entries.items() if e.qps >= NEAR_BEST * highest),
    )


def _summarize(name: WorkerClass, engines: tuple[EngineScaling, ...]) -> ThreadScaling:
    levels = sorted({level for each in engines for level in each.entries})
    comparable = [each for each in engines if levels[0] in each.entries]
    reductions = [e.t_pre_reduction for e in engines if e.t_pre_reduction is not None]
    return ThreadScaling(
        worker_class=name,
        engines=engines,
        levels=tuple(levels),
        base=levels[0],
        qps=_means([each.qps for each in comparable], levels),
        total=_means([each.total for each in comparable], levels),
        pearson=mean(each.pearson for each in engines if each.pearson is not None),
        t_pre_reduction=max(reductions, default=None),
    )


def _means(speedups: list[Mapping[int, float]], levels: list[int]) -> dict[int, float]:
    means = {level: mean(s[level] for s in speedups if level in s) for level in levels}
    return {level: value for level, value in means.items() if value is not None}
