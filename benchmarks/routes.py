"""Planners of routes on drawn fleets: ``python -m benchmarks.routes``.

Compares `optimal` with an enumeration of all routes, times it, and compares `genetic` with it.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.drawn_routes import drawn_problem
from benchmarks.report import table
from synergai.routes.enumeration import routes
from synergai.routes.genetic import Genetic
from synergai.routes.optimal import optimal_route
from synergai.routes.planner import run_search

if TYPE_CHECKING:
    from synergai.routes.problem import Route, RouteProblem

QUERIES = (1, 10, 1000)
SIZES = ((18, 4), (28, 6), (50, 8))
"""Numbers of cuts and of workers, all of which are unlike."""
COMPARED = 1000
TIMED = 200
BRED = 50


def main() -> None:
    faults = sum(differs(seed) for seed in range(COMPARED))
    print(f"optimal differs from the best of all routes on {faults} of {COMPARED} fleets\n")
    rows = [
        [str(cuts), str(workers), str(queries), *timed(cuts, workers, queries)]
        for cuts, workers in SIZES
        for queries in QUERIES
    ]
    header = ["cuts", "workers", "queries", "p50 (ms)", "p99 (ms)", "genetic / optimal", "worst"]
    print(table(header, rows))


def differs(seed: int) -> bool:
    """Return whether some route is faster than the planned one."""
    problem = drawn_problem(
        seed, cuts=seed % 6, workers=1 + seed % 5, queries=QUERIES[seed % len(QUERIES)]
    )
    best_s = min((seconds(problem, route) for route in routes(problem)), default=math.inf)
    return not np.isclose(seconds(problem, optimal_route(problem)), best_s, rtol=1e-9)


def timed(cuts: int, workers: int, queries: int) -> list[str]:
    """Return times of `optimal`, and how much longer routes of `genetic` take."""
    taken: list[float] = []
    ratios: list[float] = []
    for seed in range(TIMED):
        problem = drawn_problem(seed, cuts=cuts, workers=workers, queries=queries, alike=0)
        begin = time.perf_counter()
        best = optimal_route(problem)
        taken.append(1000 * (time.perf_counter() - begin))
        if best is not None and len(ratios) < BRED:
            bred, _ = run_search(Genetic().search(problem), problem.times)
            ratios.append(seconds(problem, bred) / seconds(problem, best))
    median, high = np.quantile(taken, [0.5, 0.99])
    return [f"{median:.1f}", f"{high:.1f}", f"{np.mean(ratios):.3f}", f"{max(ratios):.2f}"]


def seconds(problem: RouteProblem, route: Route | None) -> float:
    return math.inf if route is None else problem.times(route).seconds(problem.queries)


if __name__ == "__main__":
    main()
