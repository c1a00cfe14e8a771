"""Pipelines of stages in virtual time: slow workers and links, a burst, and streams of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from profiler.reports.charts import Boxes, Dots
from profiler.reports.page import Figure, Section
from profiler.reports.statistics import Distribution, mean
from profiler.simulator.pipelines import burst, comparison, interference
from profiler.simulator.pipelines.comparison import FIGURES, NAMES
from profiler.simulator.pipelines.places import SLOS
from profiler.simulator.simulator_settings import (
    AccordionSettings,
    BurstSettings,
    InterferenceSettings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.simulator.pipelines.burst import BurstResult
    from profiler.simulator.pipelines.comparison import StreamFigure, StreamResult
    from profiler.simulator.pipelines.interference import InterferenceResult
    from profiler.simulator.simulator_settings import Slow

_SLOWED: Final[dict[Slow, str]] = {"workers": "Slow workers", "links": "Slow links"}


def simulate_pipelines() -> Section:
    """Return the section of the experiments of ``synergai simulate pipelines``."""
    seeds = InterferenceSettings().drawn
    balanced = {slow: list(interference.compare(seeds, slow)) for slow in _SLOWED}
    bursts = list(burst.compare(BurstSettings().drawn))
    streams = list(comparison.compare(AccordionSettings().drawn, bounds=False))
    drawn = [draw_interference(balanced), draw_burst(bursts), draw_streams(streams)]
    return Section("pipelines", "Pipelines of stages", drawn)


def draw_interference(results: dict[Slow, list[InterferenceResult]]) -> Figure:
    """Return who balances a pipeline best while workers or links are slow for a while."""
    panels = [
        Boxes(
            title=_SLOWED[slow],
            label="throughput, as a share of the clairvoyant's",
            boxes={
                name: Distribution.of(shares)
                for name, shares in interference.shares(of_slow).items()
            },
            highlighted=("planning",),
        )
        for slow, of_slow in results.items()
    ]
    return Figure(
        key="pipelines-interference",
        title="A pipeline over four workers while some of them or their links are slow.",
        caption="One value per scenario. ODIN and least-loaded scheduling (lls) see the times of "
        "stages and try routes; planning learns from stages and hops, and plans anew.",
        panels=panels,
        columns=2,
        data=[
            {
                "slow": slow,
                "balancer": each.balancer,
                "seed": each.seed,
                "queries_per_s": each.rate,
                "latency_s": each.latency_s,
            }
            for slow, of_slow in results.items()
            for each in of_slow
        ],
    )


def draw_burst(results: Sequence[BurstResult]) -> Figure:
    """Return the rates of a burst of one engine among many."""
    rates: dict[str, list[float]] = {}
    for each in results:
        rates.setdefault(each.placement, []).append(each.rate)
    panel = Boxes(
        title="Rate of the burst",
        label="queries per second",
        boxes={name: Distribution.of(values) for name, values in rates.items()},
    )
    return Figure(
        key="pipelines-burst",
        title="A burst of one engine among eight, over four workers.",
        caption="The highest rate at which 99 % of all queries end in time: with whole engines, "
        "with engines that are loaded on demand, and with a stage of each engine on each worker.",
        panels=[panel],
        columns=1,
        data=[
            {
                "placement": each.placement,
                "engine": each.engine,
                "seed": each.seed,
                "queries_per_s": each.rate,
            }
            for each in results
        ],
    )


def draw_streams(results: Sequence[StreamResult]) -> Figure:
    """Return Accordion, its baselines and the malleable policy by SLO."""

    def means(figure: StreamFigure, slo: str) -> list[float | None]:
        values = [
            [figure.of(e) for e in results if (e.scheduler, e.slo) == (name, slo)] for name in NAMES
        ]
        return [mean(v for v in each if v is not None) for each in values]

    return Figure(
        key="pipelines-streams",
        title="Accordion, its baselines and the malleable policy on streams of batches.",
        caption="Means over six streams and all seeds, by how strict the SLO is. Streams, SLOs and "
        "the rules of the baselines are reconstructed.",
        panels=[
            Dots(
                title=figure.title.partition(" (")[0].capitalize(),
                label=figure.title,
                rows=NAMES,
                series={slo: means(figure, slo) for slo in SLOS},
                ordered=True,
            )
            for figure in FIGURES[:3]
        ],
        columns=3,
        data=[
            {
                "stream": each.stream,
                "slo": each.slo,
                "seed": each.seed,
                "scheduler": each.scheduler,
                "violations": each.violations,
                "mean_s": each.mean_s,
                "queries_per_s": each.rate,
            }
            for each in results
        ],
    )
