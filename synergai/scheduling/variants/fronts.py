"""The variants of an engine that are worth using on a worker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from synergai.scheduling.variants.allowance import concave_hull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import EngineName
    from synergai.scheduling.state.estimate import Estimate, Limit
    from synergai.scheduling.state.estimator import Estimator
    from synergai.scheduling.state.records import WorkerRecord

_REBUILT_EVERY_S: Final = 1.0
"""Age at which a front is built again, as transfer times drift."""
_MAX_FRONTS: Final = 64
"""Fronts of an engine on a worker that are kept, by floor and pinned variant."""


class Front(Struct):
    """Variants that no mixture of others beats, from the fastest to the most accurate.

    Attributes:
        places: number of each one's estimate among those of its engine on the worker.
        costs: worker time per query by variant, in times of the engine's fastest variant.
        values: accuracy by variant, relative to that of the engine's best; 0 if it is not known. If
            none is known, that of the reference counts as 1.
        estimates: the engine's estimates on the worker, as last seen.
        fastest_s: worker time per query of the engine's fastest variant, by these.
    """

    places: tuple[int, ...]
    costs: tuple[float, ...]
    values: tuple[float, ...]
    with_tensors: bool
    built_at: float
    estimates: Sequence[Estimate]
    fastest_s: float

    @property
    def slowest(self) -> Estimate:
        """The most accurate variant."""
        return self.estimates[self.places[-1]]

    def follow(self, estimates: Sequence[Estimate]) -> None:
        """Take over estimates of which only the pace and the transfer time have changed."""
        self.estimates = estimates
        self.fastest_s = (
            estimates[self.places[0]].capacity_s(with_tensors=self.with_tensors) / self.costs[0]
        )


def build_front(
    estimates: Sequence[Estimate],
    limit: Limit | None,
    now: float,
    *,
    with_tensors: bool,
    reference: str = "",
) -> Front | None:
    """Return the front of an engine on a worker; None if it may use no variant there.

    A variant of unknown accuracy is used only if it is the fastest. A slower one whose accuracy is
    higher by less than the standard error of the difference is no better for sure, and left out.
    If no accuracy is known, the reference counts as the only accurate variant.
    """
    places = [n for n, each in enumerate(estimates) if limit is None or limit.allows(each)]
    if not places:
        return None
    seconds = [each.capacity_s(with_tensors=with_tensors) for each in estimates]
    fastest_s = min(seconds)
    accuracies = [each.accuracy for each in estimates]
    if not any(accuracies):
        accuracies = [float(each.configuration.variant == reference) for each in estimates]
    errors = [each.entry.accuracy_error for each in estimates]
    places.sort(key=lambda place: seconds[place])
    kept: list[int] = []
    for place in places:
        if kept:
            gain = accuracies[place] - accuracies[kept[-1]]
            if gain <= math.hypot(errors[place], errors[kept[-1]]):
                continue
        kept.append(place)
    hull = concave_hull([(seconds[place], accuracies[place]) for place in kept])
    best = max(max(accuracies), 1e-9)
    return Front(
        tuple([kept[number] for number in hull]),
        tuple([seconds[kept[number]] / fastest_s for number in hull]),
        tuple([accuracies[kept[number]] / best for number in hull]),
        with_tensors,
        now,
        estimates,
        fastest_s,
    )


class Fronts:
    """The fronts of the workers' engines, kept and dropped with their estimates."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator

    def of(
        self,
        engine: EngineName,
        worker: WorkerRecord,
        limit: Limit | None,
        now: float,
        *,
        with_tensors: bool,
    ) -> Front | None:
        """Return the front of an engine on a worker; see `build_front`."""
        fronts = worker.fronts.get(engine)
        if fronts is None:
            fronts = worker.fronts[engine] = {}
        key = limit, with_tensors
        front = fronts.get(key)
        estimates = self._estimator.estimates(engine, worker)
        if front is not None and now - front.built_at <= _REBUILT_EVERY_S:
            if front.estimates is not estimates:
                front.follow(estimates)
            return front
        variants = worker.variants.get(engine)
        reference = variants[0].name if variants else ""
        front = build_front(estimates, limit, now, with_tensors=with_tensors, reference=reference)
        if front is not None:
            if len(fronts) >= _MAX_FRONTS:  # clients may ask for any floor
                fronts.clear()
            fronts[key] = front
        return front
