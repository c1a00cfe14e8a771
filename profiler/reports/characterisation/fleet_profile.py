"""The profiles of a fleet, as the characterisation reads them.

A figure of an engine on a worker class is that of its best configuration, the one with the highest
QPS, unless it says otherwise. Predicted and stale entries are counted and drawn, but nothing is
computed from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from profiler.reports.statistics import geometric_mean
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import PREDICTED

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        """Return the number of entries by label."""
        labels = [entry.label for entry in (*self.measured, *self.predicted)]
        labels += ["stale"] * len(self.stale)
        return {label: labels.count(label) for label in sorted(set(labels))}

    def row(self, engine: EngineName, worker_class: WorkerClass) -> list[ProfileEntry]:
        """Return the measurements of an engine on a worker class."""
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
