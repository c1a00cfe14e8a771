"""Seconds of worker time that one query of an engine with variants may cost now.

Worker time within a horizon is divided among the queries that have to be answered in it, so that
the sum of their accuracies is the highest: a fractional knapsack. Every query starts with its
fastest variant, and the step to a slower one with the most accuracy for its price is taken next, of
any engine. All engines thus pay the same price for a second, which is higher for long queries. The
mean that remains for an engine's query lies between two variants; see `credit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCKING: Final = 5.0
"""Rise of the price of a second during a query, in prices per horizon.

Requests that arrive during the query have less time left: their waits grow with the square of its
time.
"""


class Demand(NamedTuple):
    """Queries of one engine that have to be answered within the horizon.

    Attributes:
        seconds: worker time per query by variant, ascending.
        values: accuracy by variant, ascending; concave in the seconds.
        most_s: most worker time that all of them can use.
    """

    queries: float
    seconds: Sequence[float]
    values: Sequence[float]
    most_s: float


def concave_hull(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the numbers of the points that no mixture of others beats, the fastest first.

    Points are seconds and accuracy. Both ascend in the hull, and the gain per second falls.
    """
    hull: list[int] = []
    order = sorted(range(len(points)), key=lambda number: (points[number][0], -points[number][1]))
    for number in order:
        seconds, value = points[number]
        if hull and value <= points[hull[-1]][1]:
            continue
        while len(hull) > 1:
            (first_s, first), (last_s, last) = points[hull[-2]], points[hull[-1]]
            if (last - first) * (seconds - last_s) > (value - last) * (last_s - first_s):
                break
            hull.pop()
        hull.append(number)
    return hull


def allowances(demands: Sequence[Demand], budget_s: float, horizon_s: float) -> list[float]:
    """Return the mean seconds that a query of each demand may cost.

    Queries should be much shorter than the horizon; it is infinite if long ones do not delay
    others. Seconds are less than the fastest variant takes if the time is too short for all, more
    than the slowest takes if time is left.
    """
    if len(demands) == 1:
        queries, _, _, most_s = demands[0]
        return [min(budget_s, most_s) / queries]
    used_s = [demand.queries * demand.seconds[0] for demand in demands]
    left_s = budget_s - sum(used_s)
    if left_s <= 0.0:
        share = budget_s / sum(used_s)
        return [
            min(share * demand.seconds[0], demand.most_s / demand.queries) for demand in demands
        ]
    rise = _BLOCKING / horizon_s
    steps = [
        (
            (demand.values[at + 1] - demand.values[at])
            / ((seconds - demand.seconds[at]) * (1.0 + rise * (seconds + demand.seconds[at]))),
            number,
            at,
        )
        for number, demand in enumerate(demands)
        for at, seconds in enumerate(demand.seconds[1:])
    ]
    steps.sort(key=lambda step: (-step[0], step[1], step[2]))
    for _, number, at in steps:
        queries, seconds, _, most_s = demands[number]
        cost_s = min(queries * (seconds[at + 1] - seconds[at]), most_s - used_s[number], left_s)
        if cost_s > 0.0:
            used_s[number] += cost_s
            left_s -= cost_s
    # Time left after the slowest variants is a reserve for all alike.
    reserve = 1.0 + left_s / sum(used_s)
    return [
        min(reserve * used, demand.most_s) / demand.queries
        for used, demand in zip(used_s, demands, strict=True)
    ]
