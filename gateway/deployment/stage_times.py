"""What queries of engines have taken lately on each worker, and how many there were."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.core.routes.deployment import StageTime
from synergai.names import engine_of_stage, is_stage, split_version, stage_positions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from gateway.fleet.worker import ConnectedWorker
    from synergai.domain import EngineName

    _Key: TypeAlias = tuple[ConnectedWorker, EngineName]

WINDOW_S: Final = 1.0
"""Time after which queries are counted again."""
RATE_WINDOWS: Final = 5
"""Windows over which rates are averaged, so that they do not follow each burst."""
CHANGE: Final = 0.25
"""Relative change of a figure that is planned for."""
_LEAST: Final = 3
"""Queries that tell how long one takes."""


class StageTimes:
    """Counts the queries of engines, whole and in stages, in windows of time."""

    def __init__(self) -> None:
        # At the ends of the last windows: when, and seconds and queries in all.
        self._ends: deque[tuple[float, dict[_Key, tuple[float, int]]]] = deque(
            maxlen=RATE_WINDOWS + 1
        )
        # Of the queries since those that told how long the next one takes.
        self._since: dict[_Key, tuple[float, int]] = {}
        # What the last ones took, and what such queries took when two in a row agreed, and when.
        self._last: dict[_Key, float] = {}
        self._seconds: dict[_Key, tuple[float, float]] = {}

    def observe(
        self, workers: Iterable[ConnectedWorker], engines: Collection[EngineName], now: float
    ) -> None:
        """Begin another window if the last one has ended."""
        ended_at, _ = self._ends[-1] if self._ends else (-WINDOW_S, {})
        if now < ended_at + WINDOW_S:
            return
        counts = {
            (worker, name): computed
            for worker in workers
            for name, computed in worker.computed.items()
            if engine_of_stage(name) in engines
        }
        self._since = {key: self._since.get(key, (0.0, 0)) for key in counts}
        self._seconds = {key: self._seconds[key] for key in self._seconds if key in counts}
        before = self._ends[-1][1] if self._ends else {}
        new = {
            key: (counts[key][0] - before[key][0], counts[key][1] - before[key][1])
            for key in counts.keys() & before.keys()
        }
        for key, (seconds, queries) in new.items():
            part = _part(key[0], new, now - ended_at)
            seconds, queries = self._since[key][0] + part * seconds, self._since[key][1] + queries
            self._since[key] = seconds, queries
            if queries >= _LEAST:
                self._since[key] = 0.0, 0
                self._note(key, seconds / queries, now)
        self._ends.append((now, counts))

    def _note(self, key: _Key, query_s: float, now: float) -> None:
        """Note what the last queries took, some of which may have begun before a change."""
        last_s, self._last[key] = self._last.get(key, query_s), query_s
        if abs(query_s - last_s) <= CHANGE * last_s:
            self._seconds[key] = query_s, now

    def of(self, engine: EngineName) -> tuple[StageTime, ...]:
        """Return what queries of the stages of an engine have taken, as far as that is known.

        Of a worker, those stages count that ran last: it may have been faster before.
        """
        found = {
            (worker, stage): figure
            for (worker, stage), figure in self._seconds.items()
            if is_stage(stage) and engine_of_stage(stage) == engine
        }
        latest = {
            worker: max(at for (each, _), (_, at) in found.items() if each is worker)
            for worker, _ in found
        }
        return tuple(
            StageTime(worker.id, *stage_positions(stage), seconds)
            for (worker, stage), (seconds, at) in found.items()
            if at >= latest[worker] - RATE_WINDOWS * WINDOW_S
        )

    def queries_per_s(self, engine: EngineName) -> float:
        """Return the rate at which queries of an engine began lately, whole or in stages."""
        return sum(
            queries
            for (_, name), (_, queries) in self._rates(engine)
            if name == engine or not stage_positions(name)[0]
        )

    def expected_per_s(self, engine: EngineName) -> float:
        """Return the rate at which queries of an engine are expected.

        A version without queries is expected to get those of the other versions.
        """
        name = split_version(engine)[0]
        _, counts = self._ends[-1] if self._ends else (0.0, {})
        engines = {engine_of_stage(stage) for _, stage in counts}
        others = (each for each in engines if split_version(each)[0] == name)
        return self.queries_per_s(engine) or sum(map(self.queries_per_s, others))

    def _rates(self, engine: EngineName) -> Iterator[tuple[_Key, tuple[float, float]]]:
        """Yield the seconds and queries of an engine per second, by worker and stage."""
        now, counts = self._ends[-1] if self._ends else (0.0, {})
        for key, (seconds, queries) in counts.items():
            if engine_of_stage(key[1]) != engine:
                continue
            began, first = next((at, each[key]) for at, each in self._ends if key in each)
            if began < now:
                elapsed_s = now - began
                yield key, ((seconds - first[0]) / elapsed_s, (queries - first[1]) / elapsed_s)


def _part(
    worker: ConnectedWorker, new: Mapping[_Key, tuple[float, int]], elapsed_s: float
) -> float:
    """Return the part of the time of queries in which a worker did not run another engine."""
    busy_s = [seconds for (each, _), (seconds, _) in new.items() if each is worker and seconds]
    return min(1.0, elapsed_s / sum(busy_s)) if len(busy_s) > 1 else 1.0
