"""The variants of an engine that are worth using on a worker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from synergai.core.scheduling.variants.allowance import concave_hull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.state.estimate import Estimate, Limit


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
