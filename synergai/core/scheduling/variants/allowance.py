"""The variants of an engine that are worth using on a worker, and the seconds a query may cost now.

Worker time within a horizon is divided among the queries that have to be answered in it, so that
the sum of their accuracies is the highest: a fractional knapsack. Every query starts with its
fastest variant, and the step to a slower one with the most accuracy for its price is taken next, of
any engine. All engines thus pay the same price for a second, which is higher for long queries. The
mean that remains for an engine's query lies between two variants, among which
`synergai.core.scheduling.variants.choice` chooses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.state.estimate import Estimate, Limit

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


class ConvexFront(Struct):
    """Variants that no mixture of others beats, from the fastest to the most accurate.

    Attributes:
        positions: number of each one's estimate among those of its engine on the worker.
        costs: worker time per query by variant, in times of the engine's fastest variant.
        values: accuracy by variant, relative to that of the engine's best; 0 if it is not known. If
            none is known, that of the reference is 1.
        estimates: the engine's estimates on the worker, as last seen.
        fastest_s: worker time per query of the engine's fastest variant, by these.
    """

    positions: tuple[int, ...]
    costs: tuple[float, ...]
    values: tuple[float, ...]
    with_tensors: bool
    built_at: float
    estimates: Sequence[Estimate]
    fastest_s: float

    @property
    def slowest(self) -> Estimate:
        """The most accurate variant."""
        return self.estimates[self.positions[-1]]

    def follow(self, estimates: Sequence[Estimate]) -> None:
        """Take over estimates that differ only in pace and transfer time."""
        self.estimates = estimates
        self.fastest_s = (
            estimates[self.positions[0]].capacity_s(with_tensors=self.with_tensors) / self.costs[0]
        )


def build_front(
    estimates: Sequence[Estimate],
    limit: Limit | None,
    now: float,
    *,
    with_tensors: bool,
    reference: str = "",
) -> ConvexFront | None:
    """Return the front of an engine on a worker; None if it may use no variant there.

    A variant of unknown accuracy is used only if it is the fastest. A slower one whose accuracy is
    higher by less than the standard error of the difference is no better for sure, and left out.
    If no accuracy is known, only the reference is accurate.
    """
    positions = [n for n, each in enumerate(estimates) if limit is None or limit.allows(each)]
    if not positions:
        return None
    seconds = [each.capacity_s(with_tensors=with_tensors) for each in estimates]
    fastest_s = min(seconds)
    accuracies = [each.accuracy for each in estimates]
    if not any(accuracies):
        accuracies = [float(each.configuration.variant == reference) for each in estimates]
    errors = [each.entry.accuracy_error for each in estimates]
    positions.sort(key=lambda position: seconds[position])
    kept: list[int] = []
    for position in positions:
        if kept:
            gain = accuracies[position] - accuracies[kept[-1]]
            if gain <= math.hypot(errors[position], errors[kept[-1]]):
                continue
        kept.append(position)
    hull = concave_hull([(seconds[position], accuracies[position]) for position in kept])
    best = max(max(accuracies), 1e-9)
    return ConvexFront(
        tuple([kept[number] for number in hull]),
        tuple([seconds[kept[number]] / fastest_s for number in hull]),
        tuple([accuracies[kept[number]] / best for number in hull]),
        with_tensors,
        now,
        estimates,
        fastest_s,
    )
