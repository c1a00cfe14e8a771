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
    from synergai.routes.problem import Route, RouteProblem

ASSIGNMENTS: Final = ("weight", "count", "random")
BALANCES: Final = ("lightest", "nearest")


class Shisha:
    """Balances the work of stages, then moves segments between them while routes are tried.

    Args:
        assign: what the fastest worker gets: the stage of most work (``weight``), that of most
            segments (``count``), or any (``random``).
        balance: who takes a segment of the slowest stage: the ``lightest`` stage of a fast worker,
            or the ``nearest`` one of a faster worker.
        alpha: steps in a row without a gain after which the search ends.

    Raises:
        InvalidInput: a rule is unknown.
    """

    def __init__(
        self, assign: str = "weight", balance: str = "lightest", alpha: str = "10"
    ) -> None:
        if assign not in ASSIGNMENTS or balance not in BALANCES:
            raise InvalidInput(
                f"assign is one of {', '.join(ASSIGNMENTS)}, and balance one of "
                f"{', '.join(BALANCES)}, not {assign!r} and {balance!r}"
            )
        self._assign, self._balance, self._alpha = assign, balance, int(alpha)

    def search(self, problem: RouteProblem) -> Search:
        """Search from a balanced route over all workers, then over fewer while that is better."""
        best, best_s = None, math.inf
        for legs in range(min(len(problem.workers), problem.chain.end), 0, -1):
            start = balanced_route(problem, legs, self._assign)
            if not is_possible(problem, start):
                continue
            taker = _Taker(problem, self._balance)
            route, taken_s = yield from tuned(problem, start, taker, alpha=self._alpha, leaps=False)
            if taken_s >= best_s:
                break
            best, best_s = route, taken_s
        return best


def balanced_route(problem: RouteProblem, legs: int, assign: str = "weight") -> Route:
    """Return a route whose stages share the work, assigned to the fastest workers."""
    stages = [(weight, 1) for weight in weights(problem)]
    while len(stages) > legs:
        place = min(range(len(stages)), key=lambda each: stages[each][0])
        left = place > 0 and (
            place == len(stages) - 1 or stages[place - 1][0] <= stages[place + 1][0]
        )
        first = place - 1 if left else place
        (weight, count), (other, others) = stages[first : first + 2]
        stages[first : first + 2] = [(weight + other, count + others)]
    fastest = sorted(problem.workers, key=lambda worker: worker.seconds[0][-1])[:legs]
    by = 0 if assign == "weight" else 1
    order = sorted(range(legs), key=lambda each: -stages[each][by])
    if assign == "random":
        np.random.default_rng(legs).shuffle(order)
    workers = [""] * legs
    for place, worker in zip(order, fastest, strict=True):
        workers[place] = worker.name
    ends = np.cumsum([count for _, count in stages])
    return joined(problem.chain.end, [int(end) for end in ends[:-1]], workers)


def start(problem: RouteProblem) -> Route | None:
    """Return the running route or, without one, the balanced route over the most workers."""
    counts = range(min(len(problem.workers), problem.chain.end), 0, -1)
    seeds = (balanced_route(problem, legs) for legs in counts)
    return current(problem) or next((each for each in seeds if is_possible(problem, each)), None)


class _Taker:
    """The leg that takes a segment of the slowest one."""

    def __init__(self, problem: RouteProblem, balance: str) -> None:
        self._whole_s = {worker.name: worker.seconds[0][-1] for worker in problem.workers}
        self._mean_s = math.exp(float(np.mean(np.log([*self._whole_s.values()]))))
        self._balance = balance

    def __call__(self, route: Route, stages: Sequence[float], slowest: int) -> int | None:
        whole_s = [self._whole_s[leg.worker] for leg in route.legs]
        others = [leg for leg in range(len(stages)) if leg != slowest]
        if self._balance == "nearest":
            faster = [leg for leg in others if whole_s[leg] < whole_s[slowest]]
            return min(faster or others, key=lambda leg: abs(leg - slowest), default=None)
        fast = [leg for leg in others if whole_s[leg] <= self._mean_s]
        return min(fast or others, key=lambda leg: stages[leg], default=None)
