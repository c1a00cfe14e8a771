"""Pipelines of stages in virtual time: slow workers and links, a burst, and streams of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from profiler.reports.charts import Axis, Boxes, Dots, Series
from profiler.reports.document import Figure, Section, Table
from profiler.reports.statistics import Distribution, mean
from profiler.simulator.pipelines import burst, comparison, interference
from profiler.simulator.pipelines.comparison import FIGURES, NAMES
from profiler.simulator.pipelines.streams import SLOS
from profiler.simulator.simulator_settings import (
    AccordionSettings,
    BurstSettings,
    InterferenceSettings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.simulator.pipelines.burst import BurstResult
    from profiler.simulator.pipelines.comparison import StreamResult
    from profiler.simulator.pipelines.interference import InterferenceResult
    from profiler.simulator.simulator_settings import Slow

_SLOWED: Final[dict[Slow, str]] = {"workers": "Slow workers", "links": "Slow links"}


def simulate_pipelines() -> Section:
    """Return the section of the experiments of ``synergai simulate pipelines``."""
    seeds = InterferenceSettings().drawn
    balanced = {slow: list(interference.compare(seeds, slow)) for slow in _SLOWED}
    bursts = list(burst.compare(BurstSettings().drawn))
    streams = list(comparison.compare(AccordionSettings().drawn, bounds=False))
    return Section(
        key="pipelines",
        title="Pipelines of stages",
        blocks=(draw_interference(balanced), draw_burst(bursts), draw_streams(streams)),
    )


def draw_interference(results: dict[Slow, list[InterferenceResult]]) -> Figure:
    """Return who balances a pipeline best while workers or links are slow for a while."""
    panels, data = [], []
    for slow, of_slow in results.items():
        shares = interference.shares(of_slow)
        panels.append(
            Boxes(
                title=_SLOWED[slow],
                rows=tuple(shares),
                boxes=tuple(map(Distribution.of, shares.values())),
                axis=Axis("throughput, as a share of the clairvoyant's"),
                highlighted=("planning",),
            )
        )
        data += [(slow, each.balancer, each.seed, each.rate, each.latency_s) for each in of_slow]
    return Figure(
        key="pipelines-interference",
        title="A pipeline over four workers while some of them or their links are slow.",
        caption="One value per scenario. ODIN and least-loaded scheduling (lls) see the times of "
        "stages and try routes; planning learns from stages and hops, and plans anew.",
        panels=tuple(panels),
        columns=2,
        data=Table(
            file="pipelines-interference",
            columns=("slow", "balancer", "seed", "queries_per_s", "latency_s"),
            rows=tuple(data),
        ),
    )


def draw_burst(results: Sequence[BurstResult]) -> Figure:
    """Return the rates of a burst of one engine among many."""
    names = list(dict.fromkeys(each.placement for each in results))
    rates = [[each.rate for each in results if each.placement == name] for name in names]
    return Figure(
        key="pipelines-burst",
        title="A burst of one engine among eight, over four workers.",
        caption="The highest rate at which 99 % of all queries end in time: with whole engines, "
        "with engines that are loaded on demand, and with a stage of each engine on each worker.",
        panels=(
            Boxes(
                title="Rate of the burst",
                rows=tuple(names),
                boxes=tuple(map(Distribution.of, rates)),
                axis=Axis("queries per second"),
            ),
        ),
        columns=1,
        data=Table(
            file="pipelines-burst",
            columns=("placement", "engine", "seed", "queries_per_s"),
            rows=tuple((each.placement, each.engine, each.seed, each.rate) for each in results),
        ),
    )


def draw_streams(results: Sequence[StreamResult]) -> Figure:
    """Return Accordion, its baselines and the malleable policy by SLO."""
    panels = []
    for figure in FIGURES[:3]:
        series = []
        for slo in SLOS:
            values = {
                name: [figure.of(e) for e in results if (e.scheduler, e.slo) == (name, slo)]
                for name in NAMES
            }
            means = (mean(v for v in each if v is not None) for each in values.values())
            series.append(Series(name=slo, values=tuple(means)))
        panels.append(
            Dots(
                title=figure.title.partition(" (")[0].capitalize(),
                rows=NAMES,
                series=tuple(series),
                axis=Axis(figure.title),
                ordered=True,
            )
        )
    return Figure(
        key="pipelines-streams",
        title="Accordion, its baselines and the malleable policy on streams of batches.",
        caption="Means over six streams and all seeds, by how strict the SLO is. Streams, SLOs and "
        "the rules of the baselines are reconstructed.",
        panels=tuple(panels),
        columns=3,
        data=Table(
            file="pipelines-streams",
            columns=("stream", "slo", "seed", "scheduler", "violations", "mean_s", "queries_per_s"),
            rows=tuple(
                (e.stream, e.slo, e.seed, e.scheduler, e.violations, e.mean_s, e.rate)
                for e in results
            ),
        ),
    )
