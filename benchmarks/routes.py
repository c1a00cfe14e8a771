"""Planners of routes on drawn fleets: ``python -m benchmarks.routes``.

Compares `optimal` with an enumeration of all routes, and `partition` with all divisions of the
workers. Then it times both on larger fleets, and compares `genetic` with `optimal`.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from benchmarks.drawn_routes import drawn_problem
from benchmarks.report import table
from synergai.routes.enumeration import routes
from synergai.routes.genetic import Genetic
from synergai.routes.optimal import optimal_route
from synergai.routes.partition import partition
from synergai.routes.planner import run_search

if TYPE_CHECKING:
    from synergai.routes.problem import Route, RouteProblem, RouteWorker

QUERIES = (1, 10, 1000)
SIZES = ((18, 4), (28, 6), (50, 8))
"""Numbers of cuts and of workers, all of which are unlike."""
COMPARED = 1000
DIVIDED = 300
TIMED = 200
BRED = 50


def main() -> None:
    faults = sum(differs(seed) for seed in range(COMPARED))
    print(f"optimal differs from the best of all routes on {faults} of {COMPARED} fleets")
    found = [ratio for seed in range(DIVIDED) if (ratio := divided(seed)) is not None]
    print(
        f"partition ends {np.mean(found):.4f} times as late as the best of all divisions, at most "
        f"{max(found):.3f} times, on {len(found)} fleets\n"
    )
    rows = [
        [str(cuts), str(workers), str(queries), *timed(cuts, workers, queries)]
        for cuts, workers in SIZES
        for queries in QUERIES
    ]
    header = [
        "cuts",
        "workers",
        "queries",
        "p50 (ms)",
        "p99 (ms)",
        "genetic / optimal",
        "worst",
        "partition p50 (ms)",
    ]
    print(table(header, rows))


def differs(seed: int) -> bool:
    """Return whether some route is faster than the planned one."""
    problem = drawn_problem(
        seed, cuts=seed % 6, workers=1 + seed % 5, queries=QUERIES[seed % len(QUERIES)]
    )
    best_s = min((seconds(problem, route) for route in routes(problem)), default=math.inf)
    return not np.isclose(seconds(problem, optimal_route(problem)), best_s, rtol=1e-9)


def divided(seed: int) -> float | None:
    """Return the end of a partition over the least end of any; None if none is possible."""
    problem = drawn_problem(
        seed, cuts=1 + seed % 4, workers=2 + seed % 3, queries=(3, 20, 500)[seed // 12 % 3]
    )
    plan = partition(problem)
    return None if plan is None else plan.seconds / least_end_s(problem, plan.seconds)


def least_end_s(problem: RouteProblem, end_s: float) -> float:
    """Return the earliest possible end of a range that can end at `end_s`.

    Compares all divisions of the workers.
    """
    sets = range(1 << len(problem.workers))
    times = [
        [problem.times(route) for route in routes(replace(problem, workers=members(problem, each)))]
        for each in sets
    ]

    def most_queries(end_s: float) -> float:
        alone = [
            max((1 + (end_s - t.latency_s) // t.interval_s for t in each), default=0.0)
            for each in times
        ]
        most = [0.0]
        for each in sets[1:]:
            parts = (part for part in sets[1:] if part & each == part)
            most.append(max(max(0.0, alone[part]) + most[each ^ part] for part in parts))
        return most[-1]

    low_s, high_s = 0.0, end_s
    for _ in range(40):
        middle_s = (low_s + high_s) / 2
        if most_queries(middle_s) < problem.queries:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def members(problem: RouteProblem, number: int) -> tuple[RouteWorker, ...]:
    """Return a set of workers by its number."""
    return tuple(each for place, each in enumerate(problem.workers) if number >> place & 1)


def timed(cuts: int, workers: int, queries: int) -> list[str]:
    """Return times of `optimal`, and how much longer routes of `genetic` take."""
    taken: list[float] = []
    ratios: list[float] = []
    partitioned: list[float] = []
    for seed in range(TIMED):
        problem = drawn_problem(seed, cuts=cuts, workers=workers, queries=queries, alike=0)
        begin = time.perf_counter()
        best = optimal_route(problem)
        taken.append(1000 * (time.perf_counter() - begin))
        if best is not None and len(ratios) < BRED:
            bred, _ = run_search(Genetic().search(problem), problem.times)
            ratios.append(seconds(problem, bred) / seconds(problem, best))
            begin = time.perf_counter()
            partition(problem)
            partitioned.append(1000 * (time.perf_counter() - begin))
    median, high = np.quantile(taken, [0.5, 0.99])
    return [
        f"{median:.1f}",
        f"{high:.1f}",
        f"{np.mean(ratios):.3f}",
        f"{max(ratios):.2f}",
        f"{np.median(partitioned):.1f}",
    ]


def seconds(problem: RouteProblem, route: Route | None) -> float:
    return math.inf if route is None else problem.times(route).seconds(problem.queries)


if __name__ == "__main__":
    main()
