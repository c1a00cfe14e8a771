"""Chains of stages that workers have, ranked by what their paces and links make of them.

A planner may cut an engine anywhere. Here, the stages are given: each one runs on the workers that
have it, and a chain of them leads from the inputs of the engine to its outputs. Unlike in a plan, a
worker may run several stages of a chain, and several workers may share the queries of a stage. What
is behind an early exit takes its time for the queries that continue there; instead of the stages
behind it, the whole engine may follow, which gets the inputs once more.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cache
from heapq import heappop, heappush
from itertools import accumulate, product
from operator import mul
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from synergai.core.routes.links import GATEWAY
from synergai.core.routes.problem import Leg, Route
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from synergai.core.routes.links import Links


MAX_CHAINS: Final = 8
"""Chains that are ranked: those with the fewest stages."""
MAX_ROUTES: Final = 256
"""Routes of a chain that are considered: those over the fastest workers of each stage."""


class RankedChain(Struct, frozen=True, kw_only=True):
    """Stages from the inputs of an engine to its outputs, and the time that they take.

    Attributes:
        stages: first and last position of each stage.
        route: the fastest way of one query, which may use a worker more than once.
        latency_s: mean time of one query alone on that route.
        interval_s: time between two queries of a long range, over all routes.
        rates: queries per second by route in a long range; their sum is 1 / `interval_s`.
    """

    stages: tuple[tuple[int, int], ...]
    route: Route
    latency_s: float
    interval_s: float
    rates: dict[Route, float]

    def seconds(self, queries: int) -> float:
        """Return the time of a range of queries: the first fills the chain, the others follow."""
        return self.latency_s + (queries - 1) * self.interval_s


def rank_chains(
    paces: Mapping[Leg, float],
    sizes: Mapping[int, float],
    links: Links,
    *,
    source: str = GATEWAY,
    queries: int = 1,
    continuing: Mapping[tuple[int, int], float] | None = None,
) -> list[RankedChain]:
    """Return the chains of some stages, the fastest first; none if stages are missing.

    Of chains that are equally fast, those with fewer stages come first.

    Args:
        paces: seconds of one query by leg: a stage on a worker that has it.
        sizes: bytes of the tensors of one query by position, from 0, the inputs, to the outputs.
        source: host at which queries arise and to which results return.
        continuing: share of the queries that do not leave behind a stage with an early exit.

    Raises:
        InvalidInput: a pace is not above 0, or the size of a position is missing.
    """
    legs: dict[tuple[int, int], list[Leg]] = defaultdict(list)
    for leg in sorted(paces, key=paces.__getitem__):
        if not (0 < paces[leg] < math.inf and leg.first < leg.last and {*leg[1:]} <= sizes.keys()):
            raise InvalidInput(f"stage {leg.first}-{leg.last} on {leg.worker} has no pace or size")
        legs[leg.first, leg.last].append(leg)

    way = cache(links.way)

    @cache
    def hop(sender: str, receiver: str, position: int) -> tuple[float, Mapping[object, float]]:
        """Return the time of a tensor on its way, and what it takes of each link."""
        size = sizes[position]
        hops = {pair: link.hop(size) for pair, link in way(sender, receiver).items()}
        intervals: dict[object, float] = {pair: each.interval_s for pair, each in hops.items()}
        return math.fsum(each.seconds for each in hops.values()), intervals

    stays, end = continuing or {}, max(sizes)

    def used_s(route: Sequence[Leg]) -> tuple[float, Mapping[object, float]]:
        """Return the mean latency of a route, and what a query takes of its workers and links."""
        used: dict[object, float] = defaultdict(float)
        latency_s = 0.0
        shares = [*accumulate((stays.get(leg[1:], 1.0) for leg in route[:-1]), mul, initial=1.0)]
        for leg, share in zip(route, shares, strict=True):
            used[leg.worker] += share * paces[leg]
            latency_s += share * paces[leg]
        for sender, receiver, position, share in _ways(route, shares, source, end):
            seconds, interval_s = hop(sender, receiver, position)
            latency_s += share * seconds
            for pair in interval_s:
                used[pair] += share * interval_s[pair]
        return latency_s, used

    ranked = []
    for stages in [*fewest_stages(legs, end), *_beginning_again(legs, stays, end)]:
        kept = math.floor(MAX_ROUTES ** (1 / len(stages)))
        routes = list(product(*(legs[stage][:kept] for stage in stages)))
        ranked.append(_ranked(stages, routes, list(map(used_s, routes))))
    return sorted(ranked, key=lambda chain: (chain.seconds(queries), len(chain.stages)))


def _ways(
    route: Sequence[Leg], shares: Sequence[float], source: str, end: int
) -> Iterator[tuple[str, str, int, float]]:
    """Yield sender, receiver and position of tensors, and the share of the queries that have them.

    Results return from where queries leave.
    """
    sender = source
    for leg, share, after in zip(route, shares, [*shares[1:], 0.0], strict=True):
        yield sender if leg.first else source, leg.worker, leg.first, share
        if share > after:
            yield leg.worker, source, end, share - after
        sender = leg.worker


def _beginning_again(
    stages: Collection[tuple[int, int]], continuing: Mapping[tuple[int, int], float], end: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield chains of stages with early exits and the whole engine behind them."""
    exits = [stage for stage in stages if continuing.get(stage, 1.0) < 1]
    for last in sorted({last for _, last in exits} if (0, end) in stages else ()):
        for early in fewest_stages(exits, last):
            yield (*early, (0, end))


def _ranked(
    stages: tuple[tuple[int, int], ...],
    routes: list[tuple[Leg, ...]],
    used: Sequence[tuple[float, Mapping[object, float]]],
) -> RankedChain:
    """Rank a chain by its routes, with the latency of each and what it uses."""
    latencies, uses = zip(*used, strict=True)
    rates = pack(_costs(uses))
    fastest = min(range(len(routes)), key=latencies.__getitem__)
    return RankedChain(
        stages=stages,
        route=Route(routes[fastest]),
        latency_s=latencies[fastest],
        interval_s=1 / float(rates.sum()),
        rates={Route(routes[n]): float(rates[n]) for n in np.flatnonzero(rates)},
    )


def _costs(uses: Sequence[Mapping[object, float]]) -> NDArray[np.float64]:
    """Return what each route takes of each resource, shape (resources, routes)."""
    resources = dict.fromkeys(resource for each in uses for resource in each)
    rows = {resource: row for row, resource in enumerate(resources)}
    costs = np.zeros((len(rows), len(uses)))
    for column, used in enumerate(uses):
        costs[[rows[resource] for resource in used], column] = list(used.values())
    return costs


def fewest_stages(stages: Iterable[tuple[int, int]], end: int) -> list[tuple[tuple[int, int], ...]]:
    """Return chains of stages from position 0 to the end: `MAX_CHAINS` of those with the fewest.

    Args:
        stages: first and last position of each stage.
    """
    from_position: dict[int, list[tuple[int, int]]] = defaultdict(list)
    # Stages that each position is away from the end.
    away: dict[int, float] = {end: 0}
    for first, last in sorted(stages, reverse=True):
        if last in away:
            from_position[first].append((first, last))
            away[first] = min(away.get(first, math.inf), away[last] + 1)
    found: list[tuple[tuple[int, int], ...]] = []
    waiting: list[tuple[float, int, tuple[tuple[int, int], ...]]] = [(away.get(0, 0), 0, ())]
    while waiting and len(found) < MAX_CHAINS:
        _, _, chain = heappop(waiting)
        position = chain[-1][1] if chain else 0
        if position == end:
            found.append(chain)
        for stage in from_position[position]:
            length = len(chain) + 1
            heappush(waiting, (length + away[stage[1]], -length, (*chain, stage)))
    return found


_ROUNDING: Final = 1e-9
_FAST_STEPS: Final = 8
"""Steps per resource after which not that of the greatest gain is taken next, but the first."""


def pack(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the activities of the largest sum for which no resource is used more than once.

    This is the simplex method. After many steps, Bland's rule keeps it from cycles.

    Args:
        costs: what one unit of each activity takes of each resource, by resource and activity. Each
            activity takes something.
    """
    costs = _binding(costs)
    resources, activities = costs.shape
    unit = float(costs.max())
    # Rows are equations, the last one is the objective. The last column is the right-hand side.
    table = np.block(
        [
            [costs / unit, np.eye(resources), np.ones((resources, 1))],
            [-np.ones(activities), np.zeros(resources + 1)],
        ]
    )
    basis = np.arange(activities, activities + resources)
    steps = 0
    while (gaining := np.flatnonzero(table[-1, :-1] < -_ROUNDING)).size:
        fastest = table[-1, gaining].argmin() if steps < _FAST_STEPS * resources else 0
        column, steps = gaining[fastest], steps + 1
        # Each activity takes few of the resources, so that few rows change.
        rows = np.flatnonzero(table[:, column])
        limiting = rows[table[rows, column] > _ROUNDING]
        limits = table[limiting, -1] / table[limiting, column]
        tight = limiting[limits <= limits.min() * (1 + _ROUNDING)]
        row = tight[basis[tight].argmin()]
        table[row] /= table[row, column]
        others = rows[rows != row]
        table[others] -= np.outer(table[others, column], table[row])
        # Rounding must not leave less than nothing of a resource that is used up.
        np.maximum(table[:-1, -1], 0.0, out=table[:-1, -1])
        basis[row] = column
    found = np.zeros(activities + resources)
    found[basis] = table[:-1, -1]
    amounts: NDArray[np.float64] = found[:activities] / unit
    return amounts


def _binding(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the costs without resources that every activity uses no more than another one."""
    most = costs[:, (costs > 0).argmax(axis=1)].argmax(axis=0)
    kept = (most == np.arange(len(costs))) | (costs > costs[most]).any(axis=1)
    binding: NDArray[np.float64] = costs[kept]
    return binding
