"""Planners of routes on drawn fleets: ``python -m benchmarks.routes [PART]...``.

`exact` compares `optimal` with an enumeration of all routes, and `partition` with all divisions of
the workers. `times` takes the CPU time of both on larger fleets. `genetic` compares `genetic` with
`optimal` there.
"""

from __future__ import annotations

import math
import sys
import time
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from benchmarks.drawn_routes import drawn_problem
from benchmarks.report import table
from profiler.planning.enumeration import routes
from profiler.planning.genetic import genetic
from profiler.planning.optimal import optimal_route
from profiler.planning.plan import partition
from synergai.core.routes.planner import run_search

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.core.routes.problem import Route, RouteProblem, RouteWorker

QUERIES = (1, 3, 10, 1000)
SIZES = ((18, 4), (28, 6), (50, 8))
"""Numbers of cuts and of workers, all of which are unlike."""
COMPARED = 1000
DIVIDED = 300
TIMED = 200
BRED = 50
SHARES = ("p50", "p99")


def main() -> None:
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()


def compare() -> None:
    faults = sum(differs(seed) for seed in range(COMPARED))
    print(f"optimal differs from the best of all routes on {faults} of {COMPARED} fleets")
    found = [ratio for seed in range(DIVIDED) if (ratio := divided(seed)) is not None]
    print(
        f"partition ends {np.mean(found):.4f} times as late as the best of all divisions, at most "
        f"{max(found):.3f} times, on {len(found)} fleets"
    )


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


def take_times() -> None:
    rows = []
    for (cuts, workers), queries in product(SIZES, QUERIES):
        row = [str(cuts), str(workers), str(queries)]
        for planner, count in ((optimal_route, TIMED), (partition, TIMED // 4)):
            taken: list[float] = []
            for problem in drawn(cuts, workers, queries, count):
                begin = time.thread_time()
                planner(problem)
                taken.append(1000 * (time.thread_time() - begin))
            row += [f"{each:.1f}" for each in np.quantile(taken, [0.5, 0.99])]
        rows.append(row)
    planners = [f"{name} {share} (CPU ms)" for name in ("optimal", "partition") for share in SHARES]
    print(table(["cuts", "workers", "queries", *planners], rows))


def breed() -> None:
    rows = []
    for (cuts, workers), queries in product(SIZES, QUERIES):
        ratios = []
        for problem in drawn(cuts, workers, queries, BRED):
            best = optimal_route(problem)
            if best is not None:
                bred, _ = run_search(genetic(problem), problem.times)
                ratios.append(seconds(problem, bred) / seconds(problem, best))
        figures = (np.mean(ratios), np.quantile(ratios, 0.95), max(ratios))
        rows.append([str(cuts), str(workers), str(queries), *(f"{each:.3f}" for each in figures)])
    print(table(["cuts", "workers", "queries", "genetic / optimal", "p95", "worst"], rows))


def drawn(cuts: int, workers: int, queries: int, count: int) -> Iterator[RouteProblem]:
    for seed in range(count):
        yield drawn_problem(seed, cuts=cuts, workers=workers, queries=queries, alike=0)


def seconds(problem: RouteProblem, route: Route | None) -> float:
    return math.inf if route is None else problem.times(route).seconds(problem.queries)


PARTS = {"exact": compare, "times": take_times, "genetic": breed}


if __name__ == "__main__":
    main()
