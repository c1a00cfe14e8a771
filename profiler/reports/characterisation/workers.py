"""Question 1: how the performance of engines varies between workers (thesis, Figure 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.reports.statistics import Distribution, mean, ratio

if TYPE_CHECKING:
    from profiler.reports.characterisation.fleet_profile import FleetProfile
    from synergai.domain import EngineName, WorkerClass


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
    fastest: EngineName
    slowest: EngineName
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
        fastest=max(best, key=lambda engine: best[engine].qps),
        slowest=min(best, key=lambda engine: best[engine].qps),
        shared=len(pairs),
        qps_ratio=ratio(mean(b.qps for _, b in pairs), mean(a.qps for a, _ in pairs)),
        total_ratio=ratio(
            mean(space.total_time_s(a) for a, _ in pairs),
            mean(space.total_time_s(b) for _, b in pairs),
        ),
        t_pre_ratio=ratio(mean(a.t_pre_s for a, _ in pairs), mean(b.t_pre_s for _, b in pairs)),
    )
