"""What queries of engines have taken lately on each worker, and how many there were."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.core.routes.deployment import ObservedStage
from synergai.names import engine_of_stage, is_stage, stage_positions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gateway.fleet.worker import ConnectedWorker
    from synergai.domain import EngineName

    _Key: TypeAlias = tuple[ConnectedWorker, EngineName]

WINDOW_S: Final = 5.0
"""Time over which queries are counted."""
RATE_WINDOWS: Final = 4
"""Windows over which rates are averaged, so that they do not follow each burst."""
_LEAST: Final = 5
"""Queries in a window that tell how long one takes."""


class StageTimes:
    """Counts the queries of engines, whole and in stages, in windows of time."""

    def __init__(self) -> None:
        # At the ends of the last windows: when, and seconds and queries in all.
        self._ends: deque[tuple[float, dict[_Key, tuple[float, int]]]] = deque(
            maxlen=RATE_WINDOWS + 1
        )
        # Of a query, in the last window with enough of them.
        self._seconds: dict[_Key, float] = {}

    def observe(
        self, workers: Iterable[ConnectedWorker], engines: Collection[EngineName], now: float
    ) -> None:
        """Begin another window if the last one has ended."""
        ended_at, before = self._ends[-1] if self._ends else (-WINDOW_S, {})
        if now < ended_at + WINDOW_S:
            return
        counts = {
            (worker, name): computed
            for worker in workers
            for name, computed in worker.computed.items()
            if engine_of_stage(name) in engines
        }
        for key in counts.keys() & before.keys():
            seconds, queries = (
                new - old for new, old in zip(counts[key], before[key], strict=True)
            )
            if queries >= _LEAST:
                self._seconds[key] = seconds / queries
        self._seconds = {key: self._seconds[key] for key in self._seconds if key in counts}
        self._ends.append((now, counts))

    def of(self, engine: EngineName) -> tuple[ObservedStage, ...]:
        """Return what queries of the stages of an engine have taken, as far as that is known."""
        return tuple(
            ObservedStage(worker.id, *stage_positions(stage), seconds)
            for (worker, stage), seconds in self._seconds.items()
            if is_stage(stage) and engine_of_stage(stage) == engine
        )

    def queries_per_s(self, engine: EngineName) -> float:
        """Return the rate at which queries of an engine began lately, whole or in stages."""
        return sum(
            queries
            for (_, name), (_, queries) in self._rates(engine)
            if name == engine or not stage_positions(name)[0]
        )

    def load(self, engine: EngineName, worker: ConnectedWorker) -> float:
        """Return the share of a worker's time that queries of an engine took lately."""
        return sum(seconds for (each, _), (seconds, _) in self._rates(engine) if each is worker)

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
