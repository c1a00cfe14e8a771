"""Shisha: a balanced route from the work of segments, then online tuning.

Soomro, Abduljabbar, Castrillon, Pericàs: "Shisha: Online scheduling of CNN pipelines on
heterogeneous architectures" (PPAM 2022). Only a summary was available; it names one of the rules,
to unload the slowest stage to the lightest fast worker. The others are reconstructed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from synergai.errors import InvalidInput
from synergai.routes.moves import current, is_possible, joined, weights
from synergai.routes.tuning import tuned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.routes.planner import Search
    from synergai.routes.problem import Route, RouteProblem, RouteWorker

BALANCES: Final = ("lightest", "nearest")


class Shisha:
    """Shares the work by the speeds of workers, then moves segments while routes are tried.

    Args:
        balance: who takes a segment of the slowest stage: the ``lightest`` stage, or the
            ``nearest`` one.
        alpha: steps in a row without a gain after which the search ends.

    Raises:
        InvalidInput: the rule is unknown.
    """

    def __init__(self, balance: str = "lightest", alpha: str = "3") -> None:
        if balance not in BALANCES:
            raise InvalidInput(f"balance is one of {', '.join(BALANCES)}, not {balance!r}")
        self._taker = _lightest if balance == "lightest" else _nearest
        self._alpha = int(alpha)

    def search(self, problem: RouteProblem) -> Search:
        """Search from balanced routes over all workers, then over fewer while that is better.

        The fastest worker comes first in one of them, and last in the other.
        """
        best, best_s = None, math.inf
        for legs in range(min(len(problem.workers), problem.chain.end), 0, -1):
            before_s = best_s
            workers = _fastest(problem, legs)
            for start in dict.fromkeys(
                balanced(problem, each) for each in (workers, workers[::-1])
            ):
                if is_possible(problem, start):
                    route, taken_s = yield from tuned(
                        problem, start, self._taker, alpha=self._alpha, leaps=False
                    )
                    if taken_s < best_s:
                        best, best_s = route, taken_s
            if best_s == before_s < math.inf:
                break
        return best


def balanced(problem: RouteProblem, workers: Sequence[RouteWorker]) -> Route:
    """Return the route over workers whose stages have work in proportion to their speeds."""
    end = problem.chain.end
    speeds = np.array([1 / worker.seconds[0][-1] for worker in workers])
    shares = np.cumsum(speeds) / speeds.sum()
    work = np.cumsum(weights(problem))
    cuts = [0]
    for place, share in enumerate(shares[:-1], 1):
        nearest = int(np.abs(work - share * work[-1]).argmin()) + 1
        # Every stage has a segment.
        cuts.append(min(max(nearest, cuts[-1] + 1), end - len(workers) + place))
    return joined(end, cuts[1:], [worker.name for worker in workers])


def start(problem: RouteProblem) -> Route | None:
    """Return the running route or, without one, the balanced route over the most workers."""
    counts = range(min(len(problem.workers), problem.chain.end), 0, -1)
    seeds = (balanced(problem, _fastest(problem, legs)) for legs in counts)
    return current(problem) or next((each for each in seeds if is_possible(problem, each)), None)


def _fastest(problem: RouteProblem, count: int) -> list[RouteWorker]:
    return sorted(problem.workers, key=lambda worker: worker.seconds[0][-1])[:count]


def _lightest(stages: Sequence[float], slowest: int) -> list[int]:
    others = (leg for leg in range(len(stages)) if leg != slowest)
    return sorted(others, key=lambda leg: stages[leg])


def _nearest(stages: Sequence[float], slowest: int) -> list[int]:
    others = (leg for leg in range(len(stages)) if leg != slowest)
    return sorted(others, key=lambda leg: abs(leg - slowest))
