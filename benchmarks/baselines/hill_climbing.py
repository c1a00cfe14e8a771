"""Hill climbing in each row, from the configuration that should be the fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiler.measuring.search.belief import expected_log_qps
from profiler.measuring.search.space import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.measuring.search.space import Row
    from profiler.measuring.search.state import SearchState


class HillClimbing:
    """Measures the neighbours of each row's best point until none of them is better.

    Neighbours have the next thread count in the same mode, or the next faster or slower clock with
    the nearest thread count. Rows take turns, so that all of them share one budget.
    """

    def propose(self, state: SearchState) -> Trial | None:
        """Return the next neighbour, of a row whose turn is next."""
        wanted: list[tuple[int, int]] = []
        for row, points in state.rows.items():
            if row in state.unmeasurable:
                continue
            best = state.best(row)
            if best is None:
                left = [point for point in points if state.is_possible(point)]
                starts = [max(left, key=lambda p: _expected(state, p))] if left else []
            else:
                starts = [p for p in self._neighbours(state, row, best) if state.is_possible(p)]
            turn = len(state.measured(row))
            wanted += [(turn, point) for point in starts[:1]]
        if not wanted:
            return None
        turn = min(turn for turn, _ in wanted)
        return Trial(state.by_mode([point for its, point in wanted if its == turn])[0])

    @staticmethod
    def _neighbours(state: SearchState, row: Row, best: int) -> Sequence[int]:
        points = state.space.points
        here = points[best]
        mode = here.configuration.power_mode
        by_mode: dict[str, list[int]] = {}
        for index in state.space.rows[row]:
            by_mode.setdefault(points[index].configuration.power_mode, []).append(index)

        def threads(index: int) -> int:
            return points[index].knobs.threads

        fewer = [p for p in by_mode[mode] if threads(p) < here.knobs.threads]
        more = [p for p in by_mode[mode] if threads(p) > here.knobs.threads]
        found = [max(fewer, key=threads)] if fewer else []
        found += [min(more, key=threads)] if more else []
        modes = sorted(by_mode, key=lambda name: _speed(state, by_mode[name][0]))
        place = modes.index(mode)
        for name in modes[place + 1 : place + 2] + modes[max(0, place - 1) : place]:
            found.append(min(by_mode[name], key=lambda p: abs(threads(p) - here.knobs.threads)))
        return sorted(found, key=lambda p: -_expected(state, p))


def _expected(state: SearchState, point: int) -> float:
    return expected_log_qps(state.space.points[point].knobs)


def _speed(state: SearchState, point: int) -> tuple[float, float, int]:
    knobs = state.space.points[point].knobs
    return knobs.clock_mhz, knobs.memory_mhz, knobs.cores
