"""Accordion, its baselines and the malleable policy on every stream under every SLO."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.simulator.outcomes import LATE_S
from synergai.simulator.pipelines.accordion import SCHEDULERS
from synergai.simulator.pipelines.places import Places
from synergai.simulator.pipelines.streams import SLOS, STREAMS, draw_stream
from synergai.simulator.pipelines.whole_engines import as_workload, run_whole_engines
from synergai.simulator.pipelines.widths import measured_widths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from synergai.simulator.pipelines.streams import BatchQuery

MALLEABLE: Final = "malleable"


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
    for stream in STREAMS:
        for slo in SLOS:
            for seed in seeds:
                queries = draw_stream(stream, slo, seed, tables)
                workload = as_workload(queries, tables, seed)
                bound = None
                if bounds:
                    from synergai.simulator.bounds import violations_at_least

                    bound = violations_at_least(workload)
                for scheduler, make in SCHEDULERS.items():
                    places = Places(tables)
                    places.run(queries, make())
                    yield _result(
                        (stream, slo, seed, scheduler), queries, places.ended, bound, places.full_s
                    )
                ended = run_whole_engines(workload)
                yield _result((stream, slo, seed, MALLEABLE), queries, ended, bound)


def run_count(seeds: Sequence[int]) -> int:
    """Return the number of runs of a comparison."""
    return len(STREAMS) * len(SLOS) * len(seeds) * (len(SCHEDULERS) + 1)


def _result(
    run: tuple[str, str, int, str],
    queries: Sequence[BatchQuery],
    ended: Mapping[int, float],
    bound: int | None,
    full_s: float | None = None,
) -> StreamResult:
    stream, slo, seed, scheduler = run
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
