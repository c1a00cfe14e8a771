"""Accordion (Soomro et al. 2025) and the schedulers that it is compared with.

The paper's text describes the scheduler in words. The order of queries, the choice of donors and
the share of a pipeline's work that remains after a change of width are reconstructed. It schedules
at every arrival and release instead of periodically.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from profiler.simulator.pipelines.places import Pipeline, Places, Scheduler
    from profiler.simulator.pipelines.streams import BatchQuery


def _in_order(places: Places) -> list[BatchQuery]:
    """Return the waiting queries: high priority first, then by arrival."""
    return sorted(places.waiting, key=lambda query: (not query.high, query.number))


def _least(places: Places, query: BatchQuery) -> int | None:
    """Return the least width that meets the deadline of a query if it starts now."""
    return places.tables[query.engine].least(query.batch, query.deadline - places.now)


def _fastest(places: Places, query: BatchQuery) -> int:
    return places.tables[query.engine].fastest(query.batch)


def accordion(places: Places) -> None:
    """Start queries in time, then those that are late anyway, then widen pipelines.

    A query gets all the places it can use, and gives them back to others as its slack allows.
    """
    doomed = []
    for query in _in_order(places):
        least = _least(places, query)
        if least is None:
            doomed.append(query)
        elif places.free >= least:
            places.start(query, min(places.free, _fastest(places, query)))
        elif any(each.next_width for each in places.running) or _shrink_donors(places, query):
            return  # the places that come free are for this query
    for query in doomed:
        if places.free:
            places.start(query, min(places.free, _fastest(places, query)))
    if not places.waiting:
        _widen(places)


def _shrink_donors(places: Places, query: BatchQuery) -> bool:
    """Shrink pipelines so that a query can start; return whether they can give enough."""
    donors = sorted(
        places.running,
        key=lambda p: (p.query.high, p.ends(places.now, p.width) - p.query.deadline),
    )
    released = {donor: _least_width(places, donor) for donor in donors}
    starts = max((places.boundary(donor) for donor in donors), default=places.now)
    least = places.tables[query.engine].least(query.batch, query.deadline - starts)
    if least is None:
        return False
    missing = least - places.free
    if missing > sum(donor.width - width for donor, width in released.items()):
        return False
    for donor, width in released.items():
        given = min(missing, donor.width - width)
        if given > 0:
            places.shrink(donor, donor.width - given)
            missing -= given
    return True


def _least_width(places: Places, pipeline: Pipeline) -> int:
    """Return the least width at which a pipeline meets its deadline; 1 if it is late anyway."""
    at, deadline = places.boundary(pipeline), pipeline.query.deadline
    for width in range(1, pipeline.width):
        if pipeline.ends(at, width) <= deadline:
            return width
    return pipeline.width if pipeline.ends(places.now, pipeline.width) <= deadline else 1


def _widen(places: Places) -> None:
    """Give free places to the pipelines with the least slack that become faster by them."""
    while places.free:
        wider = [p for p in places.running if p.width < _fastest(places, p.query)]
        if not wider:
            return
        tightest = min(wider, key=lambda p: p.query.deadline - p.ends(places.now, p.width))
        places.widen(tightest)


def _at_fixed_width(width_of: Callable[[Places, BatchQuery], int], places: Places) -> None:
    """Start queries in order, each at a width that never changes, if so many places are free."""
    for query in _in_order(places):
        width = width_of(places, query)
        if places.free >= width:
            places.start(query, width)


def _conforming(places: Places, query: BatchQuery) -> int:
    return _least(places, query) or _fastest(places, query)


SCHEDULERS: Final[dict[str, Scheduler]] = {
    "accordion": accordion,
    "slo_conforming": partial(_at_fixed_width, _conforming),
    "fastest": partial(_at_fixed_width, _fastest),
    "one_stage": partial(_at_fixed_width, lambda _places, _query: 1),
}
