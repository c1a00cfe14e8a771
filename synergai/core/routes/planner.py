"""Planners of routes, by name, and the seam through which online searches measure.

A planner is a function that begins the search of a route for a `RouteProblem`. Offline planners
rely on the times of the problem, and try nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from synergai.core.routes.problem import Route, RouteTimes
from synergai.runtime.plugins import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

Search = Generator[Route, RouteTimes, Route | None]
"""Yields routes to try, is sent what each took, and returns the best; None if none is possible.

A driver decides what a trial is: the simulator computes it, a live one runs queries.
"""

ROUTE_PLANNERS: Final = Registry[Search](
    "synergai.route_planners",
    {
        "exhaustive": "profiler.planning.enumeration:exhaustive",
        "genetic": "profiler.planning.genetic:genetic",
        "lls": "profiler.planning.tuning:lls",
        "local": "profiler.planning.enumeration:local",
        "neurosurgeon": "profiler.planning.enumeration:neurosurgeon",
        "odin": "profiler.planning.tuning:odin",
        "optimal": "profiler.planning.optimal:optimal",
        "pipe_search": "profiler.planning.pipe_search:pipe_search",
        "shisha": "profiler.planning.tuning:shisha",
    },
)


def found(route: Route | None) -> Search:
    """Return the search of an offline planner, which has its route without a trial."""
    yield from ()
    return route


def run_search(search: Search, trial: Callable[[Route], RouteTimes]) -> tuple[Route | None, int]:
    """Run a search to its end; return its route and the number of trials."""
    trials = 0
    try:
        route = next(search)
        while True:
            trials += 1
            route = search.send(trial(route))
    except StopIteration as end:
        return end.value, trials
