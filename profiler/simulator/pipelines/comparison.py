"""Accordion, its baselines and the malleable policy on every stream under every SLO.

The policy has whole engines: every place is a worker that holds them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Final

from profiler.simulator.pipelines.places import (
    PLACES,
    SLOS,
    STREAMS,
    Places,
    draw_stream,
    measured_widths,
)
from profiler.simulator.simulation import LATE_S, scheduling_settings, simulate
from profiler.simulator.workload import Profile, Workload
from synergai.domain import Configuration, Job, JobId, WorkerClass
from synergai.profiles.dictionary import ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from profiler.simulator.pipelines.places import BatchQuery, Pipeline, Scheduler, Widths
    from synergai.domain import EngineName


MALLEABLE: Final = "malleable"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """One scheduler on one stream with one seed.

    Attributes:
        violations: number of queries that ended after their deadlines.
        mean_s: mean time from arrival to end.
        rate: queries per second, from the first arrival to the last end.
        full: share of that time in which every place was taken; None if it is not known.
    """

    stream: str
    slo: str
    seed: int
    scheduler: str
    queries: int
    violations: int
    mean_s: float
    rate: float
    full: float | None


def compare(seeds: Sequence[int]) -> Iterator[StreamResult]:
    """Run all schedulers on all streams; all of them get the same queries."""
    tables = measured_widths()
    for run in product(STREAMS, SLOS, seeds):
        queries = draw_stream(*run, tables)
        workload = as_workload(queries, tables, run[2])
        yield from run_schedulers(run, queries, tables)
        yield _result(run, MALLEABLE, queries, run_whole_engines(workload))


def run_schedulers(
    run: tuple[str, str, int],
    queries: Sequence[BatchQuery],
    tables: Mapping[EngineName, Widths],
) -> Iterator[StreamResult]:
    """Run the schedulers of pipelines on a stream, given its name, SLO and seed."""
    for scheduler, schedule in SCHEDULERS.items():
        places = Places(tables)
        places.run(queries, schedule)
        yield _result(run, scheduler, queries, places.ended, places.full_s)


def run_count(seeds: Sequence[int]) -> int:
    return len(STREAMS) * len(SLOS) * len(seeds) * len(NAMES)


def _result(
    run: tuple[str, str, int],
    scheduler: str,
    queries: Sequence[BatchQuery],
    ended: Mapping[int, float],
    full_s: float | None = None,
) -> StreamResult:
    stream, slo, seed = run
    makespan_s = max(ended.values()) - queries[0].arrival
    return StreamResult(
        stream=stream,
        slo=slo,
        seed=seed,
        scheduler=scheduler,
        queries=len(queries),
        violations=sum(ended[each.number] > each.deadline + LATE_S for each in queries),
        mean_s=statistics.fmean(ended[each.number] - each.arrival for each in queries),
        rate=len(queries) / makespan_s,
        full=None if full_s is None else full_s / makespan_s,
    )


_PLACE: Final = WorkerClass("place")


def as_workload(
    queries: Sequence[BatchQuery], tables: Mapping[EngineName, Widths], seed: int
) -> Workload:
    """Return a stream as jobs, whose queries are the samples of a batch; sessions are resident."""
    profile = Profile(
        ProfileEntry(
            engine=engine,
            worker_class=_PLACE,
            configuration=Configuration(threads=1),
            qps=1.0 / table.whole_s,
        )
        for engine, table in tables.items()
    )
    jobs = tuple(
        Job(
            id=JobId(f"{query.number:03d}"),
            engine=query.engine,
            queries=query.batch,
            arrival=query.arrival,
            deadline=query.deadline,
            priority=int(query.high),
        )
        for query in queries
    )
    return Workload(
        experiment="accordion",
        seed=seed,
        profile=profile,
        sessions="prewarmed",
        t_pre="fixed",
        jobs=jobs,
        factors={(job.id, _PLACE): 1.0 for job in jobs},
        fleet={_PLACE: PLACES},
    )


def run_whole_engines(workload: Workload) -> dict[int, float]:
    """Run a stream under the malleable policy and return when each query ended, by number."""
    run = simulate(workload, scheduling_settings("malleable"))
    return {int(job_id): at for job_id, at in run.finished.items()}


@dataclass(frozen=True, slots=True)
class StreamFigure:
    """A figure by which schedulers are compared; None where it is not known."""

    title: str
    of: Callable[[StreamResult], float | None]
    digits: int


FIGURES: Final = (
    StreamFigure("violations (%)", lambda each: 100 * each.violations / each.queries, 1),
    StreamFigure("mean latency (ms)", lambda each: 1000 * each.mean_s, 0),
    StreamFigure("queries per second", lambda each: each.rate, 1),
    StreamFigure(
        "time with all places taken (%)",
        lambda each: None if each.full is None else 100 * each.full,
        0,
    ),
)


def tables(results: Sequence[StreamResult]) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """Yield columns and rows for each figure.

    These are means over seeds for each stream, and over all streams of each SLO.
    """
    for figure in FIGURES:
        rows = []
        for slo, stream in product(SLOS, (*STREAMS, "mean")):
            there = [
                each for each in results if each.slo == slo and stream in (each.stream, "mean")
            ]
            rows.append([slo, stream, *(_cell(there, name, figure) for name in NAMES)])
        yield (figure.title, "stream", *NAMES), rows


def _cell(results: Sequence[StreamResult], scheduler: str, figure: StreamFigure) -> str:
    of_runs = (figure.of(each) for each in results if each.scheduler == scheduler)
    values = [each for each in of_runs if each is not None]
    return f"{statistics.fmean(values):.{figure.digits}f}" if values else "-"


# The paper describes Accordion in words. The order of queries, the choice of donors and the share
# of a pipeline's work that remains after a change of width are reconstructed. It schedules at every
# arrival and release instead of periodically.


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


def _buffered(places: Places) -> None:
    """Start queries at their fastest widths, but hold them back while one of their kind runs."""
    for query in _in_order(places):
        width = _fastest(places, query)
        running = {each.query.engine for each in places.running}
        if query.engine not in running and places.free >= width:
            places.start(query, width)


def _conforming(places: Places, query: BatchQuery) -> int:
    return _least(places, query) or _fastest(places, query)


SCHEDULERS: Final[dict[str, Scheduler]] = {
    "accordion": accordion,
    "slo_conforming": partial(_at_fixed_width, _conforming),
    "fastest": partial(_at_fixed_width, _fastest),
    "bbs": _buffered,
    "one_stage": partial(_at_fixed_width, lambda _places, _query: 1),
}
NAMES: Final = (*SCHEDULERS, MALLEABLE)
