"""Planners of routes, by name, and the seam through which online searches measure."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, Protocol

from synergai.routes.problem import Route, RouteTimes
from synergai.runtime.plugins import Registry

if TYPE_CHECKING:
    from synergai.routes.problem import RouteProblem

Search = Generator[Route, RouteTimes, Route | None]
"""Yields routes to try, is sent what each took, and returns the best; None if none is possible.

A driver decides what a trial is: the simulator computes it, a live one runs queries.
"""
Trial = Callable[[Route], RouteTimes]


class RoutePlanner(Protocol):
    """Plans a route. Offline planners rely on the times of the problem, and try nothing."""

    def search(self, problem: RouteProblem) -> Search:
        """Search a route for a problem."""


ROUTE_PLANNERS: Final = Registry[RoutePlanner](
    "synergai.route_planners",
    {
        "exhaustive": "synergai.routes.enumeration:exhaustive",
        "genetic": "synergai.routes.genetic:Genetic",
        "lls": "synergai.routes.tuning:LeastLoaded",
        "local": "synergai.routes.enumeration:local",
        "neurosurgeon": "synergai.routes.enumeration:neurosurgeon",
        "odin": "synergai.routes.tuning:Odin",
        "optimal": "synergai.routes.optimal:Optimal",
        "pipe_search": "synergai.routes.pipe_search:PipeSearch",
        "shisha": "synergai.routes.tuning:Shisha",
    },
)


def found(route: Route | None) -> Search:
    """Return the search of an offline planner, which has its route without a trial."""
    yield from ()
    return route


def run_search(search: Search, trial: Trial) -> tuple[Route | None, int]:
    """Run a search to its end; return its route and the number of trials."""
    trials = 0
    try:
        route = next(search)
        while True:
            trials += 1
            route = search.send(trial(route))
    except StopIteration as end:
        return end.value, trials
