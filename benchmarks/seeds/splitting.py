"""Splitting a network over a growing hierarchy of hosts, after Figure 1 of the paper.

Requests arise at the slowest host. Exhaustive search is left out where it would take too long.
Times are CPU milliseconds, and differ from run to run.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING, Final, TypeAlias

from benchmarks.drawn_routes import drawn_problem
from benchmarks.report import table
from profiler.planning.enumeration import MAX_ROUTES, exhaustive, route_count
from profiler.planning.genetic import genetic
from profiler.planning.moves import joined
from profiler.planning.optimal import optimal_route
from synergai.core.routes.planner import run_search

if TYPE_CHECKING:
    from benchmarks.seeds.rows import Figures, Group
    from synergai.core.routes.problem import Route, RouteProblem

Planner: TypeAlias = Callable[["RouteProblem"], "Route | None"]

SIZES: Final = ((10, 3), (22, 4), (22, 6), (50, 8))
"""Layers and hosts; GoogLeNet, the paper's network, has 22 layers."""
FLEETS: Final = 20


def cloud_only(problem: RouteProblem) -> Route | None:
    """Return the whole network on the fastest host that can hold it."""
    end = problem.chain.end
    whole = [joined(end, [], [each.name]) for each in problem.workers if problem.fits(each, 0, end)]
    return min(whole, key=partial(_seconds, problem), default=None)


def _exhaustive(problem: RouteProblem) -> Route | None:
    return run_search(exhaustive(problem), problem.times)[0]


def _genetic(problem: RouteProblem) -> Route | None:
    return run_search(genetic(problem), problem.times)[0]


def _seconds(problem: RouteProblem, route: Route) -> float:
    return problem.times(route).seconds(problem.queries)


PLANNERS: Final[dict[str, Planner]] = {
    "optimal": optimal_route,
    "genetic": _genetic,
    "exhaustive": _exhaustive,
    "cloud only": cloud_only,
}


def drawn(layers: int, hosts: int, count: int = FLEETS) -> list[RouteProblem]:
    """Return hierarchies of unlike hosts, one query at a time."""
    return [drawn_problem(seed, cuts=layers - 1, workers=hosts, alike=0) for seed in range(count)]


def quality(planner: Planner, problems: list[RouteProblem]) -> float:
    """Return the mean time of a planner's routes over that of the optimal ones."""
    ratios = []
    for problem in problems:
        best, route = optimal_route(problem), planner(problem)
        if best is not None and route is not None:
            ratios.append(_seconds(problem, route) / _seconds(problem, best))
    return fmean(ratios)


def of_size(layers: int, hosts: int) -> Figures:
    """Return by how much routes are slower than the optimal ones."""
    problems = drawn(layers, hosts)
    return {
        f"{name}.{layers}x{hosts}": f"{quality(PLANNERS[name], problems):.3f}"
        for name in ("genetic", "cloud only")
    }


def costs_table() -> str:
    """Return quality, CPU time and memory of each planner by size, on three fleets of each."""
    rows = []
    for layers, hosts in SIZES:
        problems = drawn(layers, hosts, 3)
        for name, planner in PLANNERS.items():
            if name == "exhaustive" and route_count(layers, hosts) > MAX_ROUTES:
                continue
            taken_ms, peak_kb = _cost(planner, problems)
            ratio = quality(planner, problems)
            figures = (f"{ratio:.3f}", f"{taken_ms:.1f}", f"{peak_kb:.0f}")
            rows.append([str(layers), str(hosts), name, *figures])
    return table(["layers", "hosts", "planner", "time / optimal", "CPU ms", "kB"], rows)


def _cost(planner: Planner, problems: list[RouteProblem]) -> tuple[float, float]:
    """Return the median CPU milliseconds and the peak memory in kB of a plan."""
    taken = []
    for problem in problems:
        begin = time.thread_time()
        planner(problem)
        taken.append(1000 * (time.thread_time() - begin))
    tracemalloc.start()
    planner(problems[0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return median(taken), peak / 1000


GROUPS: Final[dict[str, Group]] = {
    f"{layers}x{hosts}": partial(of_size, layers, hosts) for layers, hosts in SIZES
}
