"""The profiles of a fleet: by worker class, and the fronts of throughput against efficiency.

A figure of an engine on a worker class is that of its best configuration, the one with the highest
QPS, unless it says otherwise. Predicted and stale entries are counted and drawn, but nothing is
computed from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from profiler.reports.statistics import (
    LEAST_POINTS,
    Distribution,
    geometric_mean,
    mean,
    pearson,
    ratio,
)
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import DISTURBED, PREDICTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from synergai.domain import Configuration, EngineName, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry


RECONSTRUCTED: Final = "reconstructed"


class FleetProfile:
    """Profile entries of a fleet.

    Attributes:
        queries: number of queries for which total times are given.
        classes: worker classes with a measurement, fastest first.
        measured: entries other than predicted and stale ones.
        predicted: entries that were not measured.
        stale: entries of another model file or runtime than the engine's newest on the class.
    """

    def __init__(self, entries: Iterable[ProfileEntry], queries: int) -> None:
        self.queries = queries
        ordered = sorted(entries, key=lambda e: (e.engine, e.worker_class, e.configuration))
        self.predicted = [entry for entry in ordered if entry.label == PREDICTED]
        known = [entry for entry in ordered if entry.label != PREDICTED]
        newest = _newest(known)
        self.stale = [e for e in known if _is_stale(e, newest[e.engine, e.worker_class])]
        self.measured = [e for e in known if not _is_stale(e, newest[e.engine, e.worker_class])]
        if not self.measured:
            raise InvalidInput("the dictionary has no measurement to report; run synergai profile")
        self._rows: dict[tuple[EngineName, WorkerClass], list[ProfileEntry]] = {}
        for entry in self.measured:
            self._rows.setdefault((entry.engine, entry.worker_class), []).append(entry)
        self.engines = sorted({entry.engine for entry in self.measured})
        classes = {entry.worker_class for entry in self.measured}
        self.classes = sorted(sorted(classes), key=self._speed, reverse=True)

    def _speed(self, worker_class: WorkerClass) -> float:
        best = [self.best(engine, worker_class) for engine in self.engines]
        return geometric_mean(entry.qps for entry in best if entry is not None) or 0.0

    @property
    def is_reconstructed(self) -> bool:
        """Whether every entry was reconstructed from the thesis's printed numbers."""
        return all(entry.label == RECONSTRUCTED for entry in self.measured)

    def labels(self) -> dict[str, int]:
        labels = [entry.label for entry in (*self.measured, *self.predicted)]
        labels += ["stale"] * len(self.stale)
        return {label: labels.count(label) for label in sorted(set(labels))}

    def row(self, engine: EngineName, worker_class: WorkerClass) -> list[ProfileEntry]:
        return self._rows.get((engine, worker_class), [])

    def best(self, engine: EngineName, worker_class: WorkerClass) -> ProfileEntry | None:
        """Return the configuration with the highest QPS; None if none was measured."""
        return max(self.row(engine, worker_class), key=lambda e: e.qps, default=None)

    def configurations(self, worker_class: WorkerClass) -> list[Configuration]:
        """Return the configurations measured on a class, sorted."""
        return sorted({e.configuration for e in self.measured if e.worker_class == worker_class})

    def engine_time_s(self, entry: ProfileEntry) -> float:
        """Return the seconds that the queries of a run take."""
        return self.queries / entry.qps

    def total_time_s(self, entry: ProfileEntry) -> float:
        """Return the seconds of a run from a cold start: T_pre and the queries."""
        return entry.t_pre_s + self.engine_time_s(entry)


def _newest(entries: Iterable[ProfileEntry]) -> dict[tuple[EngineName, WorkerClass], ProfileEntry]:
    """Return the most recent measurement of each engine on each class."""
    newest: dict[tuple[EngineName, WorkerClass], ProfileEntry] = {}
    for entry in entries:
        key = entry.engine, entry.worker_class
        if key not in newest or newest[key].measured_at < entry.measured_at:
            newest[key] = entry
    return newest


def _is_stale(entry: ProfileEntry, newest: ProfileEntry) -> bool:
    """Return whether an entry is known to be of another model file or runtime."""
    return any(
        ours and theirs and ours != theirs
        for ours, theirs in ((entry.digest, newest.digest), (entry.runtime, newest.runtime))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSummary:
    """A worker class over all engines, each in its best configuration.

    Ratios are of the means over the engines that both classes have, as in the thesis.

    Attributes:
        engine_s: time of the queries.
        total_s: sum of the two.
        shared: number of engines that the fastest class has as well.
        qps_ratio: QPS of the fastest class over this one's.
        total_ratio: total time of this class over that of the fastest.
        t_pre_ratio: the same for T_pre; None if the fastest class has none.
    """

    worker_class: WorkerClass
    qps: Distribution
    t_pre_s: Distribution
    engine_s: Distribution
    total_s: Distribution
    shared: int
    qps_ratio: float | None
    total_ratio: float | None
    t_pre_ratio: float | None


def summarize_classes(space: FleetProfile) -> list[ClassSummary]:
    """Summarise every worker class, fastest first."""
    return [_summarize(space, name, space.classes[0]) for name in space.classes]


def _summarize(space: FleetProfile, name: WorkerClass, reference: WorkerClass) -> ClassSummary:
    best = {e: entry for e in space.engines if (entry := space.best(e, name)) is not None}
    pairs = [
        (entry, other)
        for engine, entry in best.items()
        if (other := space.best(engine, reference)) is not None
    ]
    return ClassSummary(
        worker_class=name,
        qps=Distribution.of(entry.qps for entry in best.values()),
        t_pre_s=Distribution.of(entry.t_pre_s for entry in best.values()),
        engine_s=Distribution.of(map(space.engine_time_s, best.values())),
        total_s=Distribution.of(map(space.total_time_s, best.values())),
        shared=len(pairs),
        qps_ratio=ratio(mean(b.qps for _, b in pairs), mean(a.qps for a, _ in pairs)),
        total_ratio=ratio(
            mean(space.total_time_s(a) for a, _ in pairs),
            mean(space.total_time_s(b) for _, b in pairs),
        ),
        t_pre_ratio=ratio(mean(a.t_pre_s for a, _ in pairs), mean(b.t_pre_s for _, b in pairs)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyFront:
    """The metered configurations of an engine on a worker class.

    Attributes:
        entries: all configurations with a measured power.
        front: those that no other one surpasses in both QPS and QPS/W; highest QPS first.
    """

    engine: EngineName
    worker_class: WorkerClass
    entries: tuple[ProfileEntry, ...]
    front: tuple[ProfileEntry, ...]

    @property
    def saving(self) -> float:
        """Part of the energy per query that the most efficient one saves over the fastest."""
        return 1 - self.front[-1].joules / self.front[0].joules


def efficiency(entry: ProfileEntry) -> float:
    """Return QPS per watt, the queries per joule; `watts` must not be 0."""
    return entry.qps / entry.watts


def fronts(space: FleetProfile) -> list[EfficiencyFront]:
    """Return the front of every engine and class with a measured power."""
    found = []
    for name in space.classes:
        for engine in space.engines:
            metered = tuple(entry for entry in space.row(engine, name) if entry.watts)
            if metered:
                found.append(
                    EfficiencyFront(
                        engine=engine,
                        worker_class=name,
                        entries=metered,
                        front=tuple(front(metered, lambda e: (e.qps, efficiency(e)))),
                    )
                )
    return found


T = TypeVar("T")


def front(items: Iterable[T], figures: Callable[[T], tuple[float, float]]) -> list[T]:
    """Return the items that no other one exceeds in one figure and equals in the other.

    Args:
        figures: two figures of an item; more is better.

    Returns:
        In descending order of the first figure; of equal items, the first one.
    """
    chosen: list[T] = []
    most = float("-inf")
    for item in sorted(items, key=lambda each: figures(each), reverse=True):
        second = figures(item)[1]
        if second > most:
            chosen.append(item)
            most = second
    return chosen


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
    """Return the scaling of every class on which thread counts were compared (Figure 5.2).

    They are compared with everything else equal: in the power mode, on the execution provider and
    with the variant with which an engine was measured with most thread counts; of several, with the
    fastest.
    """
    scalings = []
    for name in space.classes:
        engines = [s for engine in space.engines if (s := _scale(space, engine, name)) is not None]
        if engines:
            scalings.append(_summarize_class(name, tuple(engines)))
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


def _summarize_class(name: WorkerClass, engines: tuple[EngineScaling, ...]) -> ThreadScaling:
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
