"""What queries of stages have taken lately on each worker, and how many there were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.core.routes.deployment import ObservedStage
from synergai.names import engine_of_stage, is_stage, stage_positions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.fleet.worker import ConnectedWorker
    from synergai.domain import EngineName

WINDOW_S: Final = 5.0
"""Time over which queries are counted."""
_LEAST: Final = 5
"""Queries in a window that tell how long one takes."""


class _Window(NamedTuple):
    """Seconds and queries of the last window with enough queries; of the last one, its queries."""

    seconds: float
    queries: int


class StageTimes:
    """Counts the queries of stages in windows of time."""

    def __init__(self) -> None:
        self._ends_at = 0.0
        self._began_at = 0.0
        # By worker and stage: seconds and queries in all at the begin of the window.
        self._before: dict[tuple[ConnectedWorker, EngineName], tuple[float, int]] = {}
        self._last: dict[tuple[ConnectedWorker, EngineName], _Window] = {}
        self._last_s = WINDOW_S

    def observe(self, workers: Iterable[ConnectedWorker], now: float) -> None:
        """Begin another window if the last one has ended."""
        if now < self._ends_at:
            return
        counts = {
            (worker, name): computed
            for worker in workers
            for name, computed in worker.computed.items()
            if is_stage(name)
        }
        last = {}
        for key, (seconds, queries) in counts.items():
            seconds_before, queries_before = self._before.get(key, (seconds, queries))
            new = queries - queries_before
            known = self._last.get(key, _Window(0.0, 0)).seconds
            mean_s = (seconds - seconds_before) / new if new >= _LEAST else known
            last[key] = _Window(mean_s, new)
        self._last, self._before = last, counts
        self._last_s = max(now - self._began_at, WINDOW_S)
        self._began_at, self._ends_at = now, now + WINDOW_S

    def of(self, engine: EngineName) -> tuple[ObservedStage, ...]:
        """Return what queries of the stages of an engine have taken, as far as that is known."""
        return tuple(
            ObservedStage(worker.id, *stage_positions(stage), window.seconds)
            for (worker, stage), window in self._last.items()
            if window.seconds and engine_of_stage(stage) == engine
        )

    def queries_per_s(self, engine: EngineName) -> float:
        """Return the rate at which queries of an engine began in stages lately."""
        return (
            sum(
                window.queries
                for (_, stage), window in self._last.items()
                if engine_of_stage(stage) == engine and stage_positions(stage)[0] == 0
            )
            / self._last_s
        )
