"""Who balances a pipeline while other work on the machines slows its workers down."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from msgspec.structs import replace

from synergai.errors import InternalError
from synergai.routes.moves import seconds
from synergai.routes.optimal import optimal_route
from synergai.routes.problem import Route, RouteProblem, RouteTimes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from synergai.routes.planner import RoutePlanner, Search

THETA: Final = 0.1
"""Share by which the time of a stage has to change until the pipeline is balanced again."""
IN_A_ROW: Final = 3
"""Queries in a row that have to show it, and queries of a trial."""
LEAST_GAIN: Final = 0.02
FORGET_S: Final = 2.0
"""Time after which a slow worker that runs no stage is expected to be undisturbed again."""


class Balancer(Protocol):
    """Decides over which route queries run."""

    def route(self, now: float) -> Route:
        """Return the route of a query that enters now."""

    def seen(self, now: float, route: Route, stages: Sequence[float]) -> None:
        """Take notice of the times of the stages of a query that ended now."""


class Fixed:
    """Keeps the route that is the best one without interference."""

    def __init__(self, problem: RouteProblem) -> None:
        self._route = best_route(problem, {})

    def route(self, _now: float) -> Route:
        """Return the route."""
        return self._route

    def seen(self, _now: float, _route: Route, _stages: Sequence[float]) -> None:
        """Ignore it."""


class Searching:
    """Starts an online search when the time of a stage has changed.

    The queries of a trial are served like all others.
    """

    def __init__(self, problem: RouteProblem, planner: RoutePlanner) -> None:
        self._problem, self._planner = problem, planner
        self._route = best_route(problem, {})
        self._search: Search | None = None
        self._reference: Sequence[float] | None = None
        self._recent: deque[Sequence[float]] = deque(maxlen=IN_A_ROW)

    def route(self, _now: float) -> Route:
        """Return the route that is tried, or the best of the last search."""
        return self._route

    def seen(self, _now: float, route: Route, stages: Sequence[float]) -> None:
        """Search if the times of a stage have changed, or answer the trial of a search."""
        if route != self._route:
            return
        self._recent.append(stages)
        if len(self._recent) < IN_A_ROW:
            return
        means = tuple(map(float, np.mean(self._recent, axis=0)))
        if self._search is not None:
            self._try(self._search, means)
        elif self._reference is None:
            self._reference = means
        elif self._has_changed(self._reference):
            self._search = self._planner.search(replace(self._problem, current=self._route))
            self._use(next(self._search))

    def _has_changed(self, reference: Sequence[float]) -> bool:
        changes = np.abs(np.array(self._recent) / reference - 1)
        return bool((changes > THETA).all(axis=0).any())

    def _try(self, search: Search, stages: tuple[float, ...]) -> None:
        """Give the search what a route took, and run the next one."""
        hops = self._problem.times(self._route).hops
        try:
            self._use(search.send(RouteTimes(stages, hops)))
        except StopIteration as end:
            self._search = None
            self._use(end.value)

    def _use(self, route: Route) -> None:
        self._route = route
        self._reference = None
        self._recent.clear()


class Planning:
    """Learns how slow each worker is from its stages, and plans anew when that has changed.

    A worker that runs no stage shows nothing, so its slow-down is forgotten after a while.
    """

    def __init__(self, problem: RouteProblem) -> None:
        self._problem = problem
        self._route = best_route(problem, {})
        self._factors: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}
        self._idle_since: dict[str, float] = {}

    def route(self, now: float) -> Route:
        """Return the best route by what is known of the workers."""
        forgotten = [name for name, since in self._idle_since.items() if now - since > FORGET_S]
        for name in forgotten:
            del self._idle_since[name], self._factors[name]
        if forgotten:
            self._plan(now)
        return self._route

    def seen(self, now: float, route: Route, stages: Sequence[float]) -> None:
        """Learn how slow the workers of the route are, and plan if that has changed."""
        has_changed = False
        undisturbed = self._problem.times(route).stages
        for leg, taken_s, expected_s in zip(route.legs, stages, undisturbed, strict=True):
            recent = self._recent.setdefault(leg.worker, deque(maxlen=IN_A_ROW))
            recent.append(taken_s / expected_s)
            known = self._factors.get(leg.worker, 1.0)
            if len(recent) == IN_A_ROW and min(abs(each / known - 1) for each in recent) > THETA:
                self._factors[leg.worker] = sum(recent) / IN_A_ROW
                has_changed = True
        if has_changed:
            self._plan(now)

    def _plan(self, now: float) -> None:
        """Take the best route, if that is worth a change."""
        problem = slowed(self._problem, self._factors)
        best = best_route(self._problem, self._factors)
        if seconds(problem, best) < (1 - LEAST_GAIN) * seconds(problem, self._route):
            self._route = best
        used = {leg.worker for leg in self._route.legs}
        self._idle_since = {
            name: self._idle_since.get(name, now) for name in self._factors if name not in used
        }


def best_route(problem: RouteProblem, factors: Mapping[str, float]) -> Route:
    """Return the best route while some workers take `factors` times as long."""
    route = optimal_route(slowed(problem, factors))
    if route is None:
        raise InternalError("no route over workers of unlimited memory")
    return route


def slowed(problem: RouteProblem, factors: Mapping[str, float]) -> RouteProblem:
    """Return the problem while some workers take `factors` times as long."""
    workers = tuple(
        replace(
            worker,
            seconds=tuple(
                tuple(factors.get(worker.name, 1.0) * each for each in row)
                for row in worker.seconds
            ),
        )
        for worker in problem.workers
    )
    return replace(problem, workers=workers)
