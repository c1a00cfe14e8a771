"""ODIN and least-loaded scheduling: the running route is balanced by the times of its stages alone.

Soomro, Abduljabbar, Castrillon, Pericàs: "ODIN: Overcoming dynamic interference in inference
pipelines" (Euro-Par 2023). Only a summary was available; the rules are reconstructed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.routes.shisha import start
from synergai.routes.tuning import tuned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.routes.planner import Search
    from synergai.routes.problem import RouteProblem


class Odin:
    """Moves segments off the slowest stage, towards the side with less work.

    Args:
        alpha: steps in a row without a gain after which the search ends.
    """

    def __init__(self, alpha: str = "10") -> None:
        self._alpha = int(alpha)

    def search(self, problem: RouteProblem) -> Search:
        """Search from the running route; one that a step left as it was gets the step again."""
        first = start(problem)
        if first is None:
            return None
        route, _ = yield from tuned(problem, first, _lighter_side, alpha=self._alpha, leaps=True)
        return route


class LeastLoaded:
    """Moves segments from the slowest to the fastest stage until that brings no gain."""

    def search(self, problem: RouteProblem) -> Search:
        """Search from the running route."""
        first = start(problem)
        if first is None:
            return None
        route, _ = yield from tuned(problem, first, _least_loaded, alpha=1, leaps=False)
        return route


def _lighter_side(stages: Sequence[float], slowest: int) -> Sequence[int]:
    """Return the fastest stage of the side of the slowest one that takes less time."""
    sides = [side for side in (range(slowest), range(slowest + 1, len(stages))) if side]
    if not sides:
        return ()
    side = min(sides, key=lambda each: sum(stages[leg] for leg in each))
    return (min(side, key=lambda leg: stages[leg]),)


def _least_loaded(stages: Sequence[float], slowest: int) -> Sequence[int]:
    others = [leg for leg in range(len(stages)) if leg != slowest]
    return (min(others, key=lambda leg: stages[leg]),) if others else ()
