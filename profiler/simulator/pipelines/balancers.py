"""Who balances a pipeline while its workers or the links between them become slower."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np
from msgspec.structs import replace

from profiler.planning.moves import seconds
from profiler.planning.optimal import optimal_route
from synergai.core.routes.problem import Route, RouteProblem, RouteTimes
from synergai.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from synergai.core.routes.planner import Search

Part: TypeAlias = str | tuple[str, str]
"""A worker, or a link by its pair of hosts."""
THETA: Final = 0.1
"""Share by which the time of a stage has to change until the pipeline is balanced again."""
IN_A_ROW: Final = 3
"""Queries in a row that have to show it, and queries of a trial."""
LEAST_GAIN: Final = 0.02
FORGET_S: Final = 2.0
"""Time after which a slow part without queries is expected to be undisturbed again."""


class Balancer(Protocol):
    """Decides over which route queries run."""

    def route(self, now: float) -> Route:
        """Return the route of a query that enters now."""

    def seen(self, now: float, route: Route, times: RouteTimes) -> None:
        """Take notice of what the stages and hops of a query took that ended now."""


class Searching:
    """Starts an online search when the time of a stage has changed.

    The queries of a trial are served like all others.
    """

    def __init__(self, problem: RouteProblem, planner: Callable[[RouteProblem], Search]) -> None:
        self._problem, self._planner = problem, planner
        self._route = best_route(problem, {})
        self._search: Search | None = None
        self._reference: Sequence[float] | None = None
        self._recent: deque[Sequence[float]] = deque(maxlen=IN_A_ROW)

    def route(self, _now: float) -> Route:
        """Return the route that is tried, or the best of the last search."""
        return self._route

    def seen(self, _now: float, route: Route, times: RouteTimes) -> None:
        """Search if the times of a stage have changed, or answer the trial of a search."""
        if route != self._route:
            return
        self._recent.append(times.stages)
        if len(self._recent) < IN_A_ROW:
            return
        means = tuple(map(float, np.mean(self._recent, axis=0)))
        if self._search is not None:
            self._try(self._search, means)
        elif self._reference is None:
            self._reference = means
        elif self._has_changed(self._reference):
            self._search = self._planner(replace(self._problem, current=self._route))
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
    """Learns how slow workers and links are, and plans anew when that has changed.

    A part that a query does not pass shows nothing, so its slow-down is forgotten after a while.
    """

    def __init__(self, problem: RouteProblem) -> None:
        self._problem = problem
        self._route = best_route(problem, {})
        self._factors: dict[Part, float] = {}
        self._recent: dict[Part, deque[float]] = {}
        self._idle_since: dict[Part, float] = {}

    def route(self, now: float) -> Route:
        """Return the best route by what is known of the workers and links."""
        forgotten = [part for part, since in self._idle_since.items() if now - since > FORGET_S]
        for part in forgotten:
            del self._idle_since[part], self._factors[part]
        if forgotten:
            self._plan(now)
        return self._route

    def seen(self, now: float, route: Route, times: RouteTimes) -> None:
        """Learn how slow the parts of the route are, and plan if that has changed."""
        has_changed = False
        undisturbed = self._problem.times(route)
        taken = [*times.stages, *(hop.interval_s for hop in times.hops)]
        expected = [*undisturbed.stages, *(hop.interval_s for hop in undisturbed.hops)]
        for part, taken_s, expected_s in zip(self._parts(route), taken, expected, strict=True):
            if not expected_s:  # within a host
                continue
            recent = self._recent.setdefault(part, deque(maxlen=IN_A_ROW))
            recent.append(taken_s / expected_s)
            known = self._factors.get(part, 1.0)
            if len(recent) == IN_A_ROW and min(abs(each / known - 1) for each in recent) > THETA:
                self._factors[part] = sum(recent) / IN_A_ROW
                has_changed = True
        if has_changed:
            self._plan(now)

    def _plan(self, now: float) -> None:
        """Take the best route, if that is worth a change."""
        problem = slowed(self._problem, self._factors)
        best = best_route(self._problem, self._factors)
        if seconds(problem, best) < (1 - LEAST_GAIN) * seconds(problem, self._route):
            self._route = best
        used = set(self._parts(self._route))
        self._idle_since = {
            part: self._idle_since.get(part, now) for part in self._factors if part not in used
        }

    def _parts(self, route: Route) -> list[Part]:
        """Return the workers of a route, and then its links."""
        workers = [leg.worker for leg in route.legs]
        return [*workers, *pairwise([self._problem.source, *workers, self._problem.source])]


def best_route(problem: RouteProblem, factors: Mapping[Part, float]) -> Route:
    """Return the best route while some parts take `factors` times as long."""
    route = optimal_route(slowed(problem, factors))
    if route is None:
        raise InternalError("no route over workers of unlimited memory")
    return route


def slowed(problem: RouteProblem, factors: Mapping[Part, float]) -> RouteProblem:
    """Return the problem while some parts take `factors` times as long."""
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
    links = {part: factor for part, factor in factors.items() if isinstance(part, tuple)}
    return replace(problem, workers=workers, links=problem.links.slowed(links))
