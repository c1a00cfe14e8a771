"""Stages that several workers share: as many of them as each stage needs to keep pace.

In a plan of routes without a common worker, each stage of a route has one worker, and the slowest
one lets the others wait. Here, any workers may share the queries of a stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from profiler.planning.tables import Tables
from synergai.core.routes.links import GATEWAY
from synergai.core.routes.problem import Leg, Route

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from synergai.core.routes.problem import RouteProblem

MAX_STAGES: Final = 4
"""Stages of the longest chain. The more there are, the fewer workers can share each of them."""
_LEAST_S: Final = 1e-12

# The first stages, up to a position, are on some workers. The least interval that these can keep
# follows from those of fewer stages on fewer workers, and the workers of the last one.


def shared_routes(problem: RouteProblem) -> Iterator[tuple[Route, ...]]:
    """Yield routes in whose stages workers share the queries, for each number of stages.

    Among all chains and workers of the stages, they have the least interval, and of these the
    fewest workers, if all tensors pass the links of the gateway. Each leg is in one of the routes.
    """
    tables = Tables(problem)
    intervals = _intervals(problem, tables)
    # All pairs of a set and a part of it, sorted by the set.
    fits = (tables.counts[:, np.newaxis] >= tables.counts).all(axis=2)
    fits[:, 0] = False
    sets, parts = np.nonzero(fits)
    begins = np.flatnonzero(np.diff(sets, prepend=-1))
    end, number = problem.chain.end, len(tables.counts)
    least = [np.full((end + 1, number), np.inf)]
    least[0][0] = 0.0
    for stages in range(1, min(MAX_STAGES, end, len(problem.workers)) + 1):
        reached = np.full((end + 1, number), np.inf)
        for last in range(stages, end + 1):
            joined = np.maximum(least[-1][:last, sets - parts], intervals[:last, last][:, parts])
            reached[last, sets[begins]] = np.minimum.reduceat(joined.min(axis=0), begins)
        least.append(reached)
        if stages > 1 and reached[end].min() < np.inf:
            yield _routes(tables, intervals, least, fits)


def _intervals(problem: RouteProblem, tables: Tables) -> NDArray[np.float64]:
    """Return the interval that a set of workers keeps in a stage, by its ends and the set.

    A worker takes as long as its slowest part: the stage, or a tensor on its way from the gateway
    or to it.
    """
    links, sizes = problem.links, problem.chain.sizes
    shares = np.array(problem.chain.shares or np.ones(len(sizes)))
    rates = []
    for number, members in enumerate(tables.groups):
        ways = (GATEWAY, members[0]), (members[0], GATEWAY)
        received, sent = (
            shares * np.array([links.hop(*way, size).interval_s for size in sizes]) for way in ways
        )
        slowest = np.maximum(tables.stages[:, :, number].T, received[:, np.newaxis])
        rates.append(1 / np.maximum(np.maximum(slowest, sent), _LEAST_S))
    with np.errstate(divide="ignore"):
        intervals: NDArray[np.float64] = 1 / np.tensordot(rates, tables.counts, axes=(0, 1))
    return intervals


def _routes(
    tables: Tables,
    intervals: NDArray[np.float64],
    least: Sequence[NDArray[np.float64]],
    fits: NDArray[np.bool_],
) -> tuple[Route, ...]:
    """Return the routes of the least interval with the most stages."""
    position, members = len(intervals) - 1, tables.members
    chosen = int(np.lexsort((members, least[-1][position]))[0])
    left = [list(group) for group in tables.groups]
    stages: list[list[Leg]] = []
    for before in least[-2::-1]:
        parts = np.flatnonzero(fits[chosen])
        joined = np.maximum(
            before[:position, chosen - parts], intervals[:position, position][:, parts]
        )
        first, part = np.unravel_index(int(joined.argmin()), joined.shape)
        counts = np.where(
            tables.stages[position, first] < np.inf, tables.counts[parts[part]], 0
        ).tolist()
        workers = [left[group].pop() for group, count in enumerate(counts) for _ in range(count)]
        stages.insert(0, [Leg(worker, int(first), position) for worker in workers])
        position, chosen = int(first), int(chosen - parts[part])
    width = max(map(len, stages))
    routes = [Route(tuple(legs[n % len(legs)] for legs in stages)) for n in range(width)]
    # One more, so that they have workers in common, and queries may change between them.
    return (*routes, Route(tuple(legs[n % len(legs)] for n, legs in enumerate(stages))))
