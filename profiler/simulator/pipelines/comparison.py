"""Accordion, its baselines and the malleable policy on every stream under every SLO.

The policy has whole engines: every place is a worker that holds them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final

from profiler.simulator.audit import audit
from profiler.simulator.outcomes import LATE_S
from profiler.simulator.pipelines.accordion import SCHEDULERS
from profiler.simulator.pipelines.places import Places
from profiler.simulator.pipelines.streams import SLOS, STREAMS, draw_stream
from profiler.simulator.pipelines.widths import PLACES, measured_widths
from profiler.simulator.simulation import scheduling_settings, simulate
from profiler.simulator.workload import Profile, Workload
from synergai.domain import Configuration, Job, JobId, WorkerClass
from synergai.profiles.dictionary import ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from profiler.simulator.pipelines.streams import BatchQuery
    from profiler.simulator.pipelines.widths import Widths
    from synergai.domain import EngineName

MALLEABLE: Final = "malleable"
NAMES: Final = (*SCHEDULERS, MALLEABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """One scheduler on one stream with one seed.

    Attributes:
        violations: number of queries that ended after their deadlines.
        mean_s: mean time from arrival to end.
        rate: queries per second, from the first arrival to the last end.
        full: share of that time in which every place was taken; None if it is not known.
        violations_at_least: lower bound for any schedule, if requested.
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
    violations_at_least: int | None = None


def compare(seeds: Sequence[int], *, bounds: bool) -> Iterator[StreamResult]:
    """Run all schedulers on all streams; all of them get the same queries."""
    tables = measured_widths()
    for run in product(STREAMS, SLOS, seeds):
        queries = draw_stream(*run, tables)
        workload = as_workload(queries, tables, run[2])
        bound = None
        if bounds:
            from profiler.simulator.bounds import violations_at_least

            bound = violations_at_least(workload)
        for scheduler, schedule in SCHEDULERS.items():
            places = Places(tables)
            places.run(queries, schedule)
            yield _result(run, scheduler, queries, places.ended, bound, places.full_s)
        yield _result(run, MALLEABLE, queries, run_whole_engines(workload), bound)


def run_count(seeds: Sequence[int]) -> int:
    """Return the number of runs of a comparison."""
    return len(STREAMS) * len(SLOS) * len(seeds) * len(NAMES)


def _result(
    run: tuple[str, str, int],
    scheduler: str,
    queries: Sequence[BatchQuery],
    ended: Mapping[int, float],
    bound: int | None,
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
        violations_at_least=bound,
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
    audit(run)
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
    """Yield columns and rows for each figure, and then of the lower bounds, if there are any.

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
    bounds = [
        (each.slo, 100 * each.violations_at_least / each.queries)
        for each in results
        if each.violations_at_least is not None
    ]
    if bounds:
        means = {slo: statistics.fmean(bound for of, bound in bounds if of == slo) for slo in SLOS}
        yield (
            ("lower bound", "violations (%)"),
            [[slo, f"{mean:.1f}"] for slo, mean in means.items()],
        )


def _cell(results: Sequence[StreamResult], scheduler: str, figure: StreamFigure) -> str:
    of_runs = (figure.of(each) for each in results if each.scheduler == scheduler)
    values = [each for each in of_runs if each is not None]
    return f"{statistics.fmean(values):.{figure.digits}f}" if values else "-"
