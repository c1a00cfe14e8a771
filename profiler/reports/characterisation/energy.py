"""The front of throughput against efficiency, where power was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.dictionary.pareto import front

if TYPE_CHECKING:
    from profiler.reports.characterisation.fleet_profile import FleetProfile
    from synergai.domain import EngineName, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry


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

    @property
    def price(self) -> float:
        """Part of the highest QPS that the most efficient one gives up."""
        return 1 - self.front[-1].qps / self.front[0].qps


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
