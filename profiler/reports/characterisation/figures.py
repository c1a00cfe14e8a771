"""Figures of the characterisation, after Figures 5.1 to 5.5 of the thesis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from profiler.reports.characterisation.fleet_profile import efficiency
from profiler.reports.characterisation.operating_modes import mode_name
from profiler.reports.charts import Boxes, Dots, Scatter, Speedups
from profiler.reports.page import Figure
from profiler.reports.wording import correlation
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from profiler.reports.characterisation.fleet_profile import (
        ClassSummary,
        EfficiencyFront,
        FleetProfile,
        ThreadScaling,
    )
    from profiler.reports.characterisation.operating_modes import Knob, KnobValue, ModeComparison
    from synergai.domain import WorkerClass
    from synergai.profiles.dictionary import ProfileEntry

QPS: Final = "queries per second"
_MINUTE: Final = 60.0
_MINUTES_FROM_S: Final = 300.0
_NAMED_FRONTS: Final = 8
KNOBS: Final = {
    "clock": ("Clock", "largest CPU clock", "MHz"),
    "cores": ("CPUs", "CPUs online", "CPUs"),
    "budget": ("Power budget", "power budget", "W"),
}
"""Title, name and unit of a limit that power modes set."""


def _time_unit(longest_s: float) -> tuple[float, str]:
    return (_MINUTE, "min") if longest_s > _MINUTES_FROM_S else (1.0, "s")


def draw_workers(space: FleetProfile, classes: list[ClassSummary]) -> Figure:
    """Return Figure 5.1: every engine on every worker class, in its best configuration."""
    total_unit, total_name = _time_unit(max(each.total_s.high for each in classes))
    engine_unit, engine_name = _time_unit(max(each.engine_s.high for each in classes))
    best = {name: [space.best(engine, name) for engine in space.engines] for name in space.classes}
    has_t_pre = any(entry.t_pre_s for entry in space.measured)

    def dots(title: str, label: str, value: Callable[[ProfileEntry], float | None]) -> Dots:
        series: dict[str, list[float | None]] = {
            name: [None if entry is None else value(entry) for entry in entries]
            for name, entries in best.items()
        }
        return Dots(title=title, label=label, log=True, rows=space.engines, series=series)

    panels = [dots("Throughput", QPS, lambda entry: entry.qps)]
    if has_t_pre:
        # A logarithmic axis has no place for 0, which stands for a time that was not measured.
        panels.append(dots("Pre-processing time T_pre", "s", lambda entry: entry.t_pre_s or None))
    panels += [
        dots(
            "Engine time",
            f"{engine_name} for {space.queries:,} queries",
            lambda entry: space.engine_time_s(entry) / engine_unit,
        ),
        dots(
            "Total time",
            f"{total_name} for T_pre and {space.queries:,} queries",
            lambda entry: space.total_time_s(entry) / total_unit,
        ),
    ]
    return Figure(
        key="figure-5-1",
        title="Engines on all worker classes, each in its best configuration (Figure 5.1).",
        caption="Each engine in the configuration with its highest QPS."
        + ("" if has_t_pre else " T_pre was not measured."),
        panels=panels,
        columns=2,
    )


def draw_threads(space: FleetProfile, scaling: ThreadScaling) -> Figure:
    """Return Figure 5.2: a worker class over thread counts."""
    entries = [entry for each in scaling.engines for entry in each.entries.values()]
    unit, unit_name = _time_unit(max(map(space.total_time_s, entries)))

    def dots(title: str, label: str, value: Callable[[ProfileEntry], float]) -> Dots:
        series = {
            counted(level, "thread") if level == scaling.base else str(level): [
                value(entry) if (entry := each.entries.get(level)) is not None else None
                for each in scaling.engines
            ]
            for level in scaling.levels
        }
        rows = [each.engine for each in scaling.engines]
        return Dots(title=title, label=label, log=True, rows=rows, series=series, ordered=True)

    def points(values: Mapping[int, float]) -> list[tuple[float, float]]:
        return [(float(level), value) for level, value in values.items()]

    return Figure(
        key=f"figure-5-2-{scaling.worker_class}",
        title=f"Threads on {scaling.worker_class} (Figure 5.2).",
        caption=f"Over {counted(scaling.base, 'thread')}; thick lines are means over engines.",
        panels=[
            dots("Throughput by threads", QPS, lambda entry: entry.qps),
            dots(
                "Total time by threads",
                f"{unit_name} for T_pre and {space.queries:,} queries",
                lambda entry: space.total_time_s(entry) / unit,
            ),
            Speedups(
                title="Speed-up",
                x_label="threads",
                y_label=f"times that with {scaling.base}",
                single=[points(each.qps) for each in scaling.engines],
                single_name="one engine",
                means={
                    "mean of QPS": points(scaling.qps),
                    "mean of total time": points(scaling.total),
                },
                reference=points({level: level / scaling.base for level in scaling.levels}),
            ),
        ],
        columns=3,
    )


def draw_correlation(scaling: ThreadScaling) -> Figure:
    """Return the correlation of threads and QPS by engine, and the thread counts that suffice."""
    rows = [each.engine for each in scaling.engines]
    least = min((e.pearson for e in scaling.engines if e.pearson is not None), default=0.0)
    return Figure(
        key=f"correlation-{scaling.worker_class}",
        title=f"Linearity of threads and QPS on {scaling.worker_class}.",
        caption="Of engines with three or more thread counts, without disturbed measurements.",
        panels=[
            Dots(
                title="Pearson correlation of threads and QPS",
                label="r (1: linear)",
                limits=(-1.05 if least < -0.2 else -0.25, 1.05),
                rows=rows,
                series={"r": [each.pearson for each in scaling.engines]},
            ),
            Dots(
                title="Threads needed",
                label="threads",
                limits=(0, scaling.levels[-1] * 1.05),
                rows=rows,
                series={
                    "highest QPS": [each.best for each in scaling.engines],
                    "95 % of it": [each.near_best for each in scaling.engines],
                },
                hollow=("95 % of it",),
            ),
        ],
        columns=2,
    )


def draw_modes(comparison: ModeComparison) -> Figure:
    """Return Figure 5.3: a worker class over power modes."""
    name = comparison.worker_class
    unit, unit_name = _time_unit(max(each.total_s.high for each in comparison.modes))
    best = (mode_name(comparison.best.mode),)
    return Figure(
        key=f"figure-5-3-{name}",
        title=f"Power modes of {name} (Figure 5.3).",
        caption="Each engine with its best thread count in the mode.",
        panels=[
            Boxes(
                title="Throughput over engines",
                label=QPS,
                boxes={mode_name(each.mode): each.qps for each in comparison.modes},
                highlighted=best,
            ),
            Boxes(
                title="Total time over engines",
                label=unit_name,
                boxes={
                    mode_name(each.mode): each.total_s.scaled(1 / unit) for each in comparison.modes
                },
                highlighted=best,
            ),
        ],
        columns=2,
    )


def draw_knobs(comparison: ModeComparison) -> Figure:
    """Return Figure 5.4 or 5.5: QPS over the limits that the modes of a class set."""
    name = comparison.worker_class
    source = {"agx": " (Figure 5.4)", "nx": " (Figure 5.5)"}.get(name, " (after Figure 5.4)")
    return Figure(
        key=f"figure-5-4-{name}",
        title=f"Limits of the modes of {name}{source}.",
        caption=_knobs_caption(comparison),
        panels=[_knob_panel(knob) for knob in comparison.knobs],
        columns=3,
    )


def _knobs_caption(comparison: ModeComparison) -> str:
    """Return the correlations with QPS, and what they leave out."""
    known = [knob for knob in comparison.knobs if knob.pearson is not None]
    if not known:
        return ""
    pairs = "; ".join(
        f"{knob.name} {correlation(knob.pearson)} ({correlation(knob.partial)})" for knob in known
    )
    caption = (
        f"Correlations of log QPS with the logarithm of each limit: {pairs}. In brackets, partial "
        "ones: limits that all modes have are held constant."
    )
    if any(knob.is_unlimited for knob in known):
        caption += " That of the budget leaves out modes without one (MAXN)."
    return caption


def _knob_panel(knob: Knob) -> Boxes:
    title, label, unit = KNOBS[knob.name]

    def row(each: KnobValue) -> str:
        return "no limit" if math.isinf(each.value) else f"{each.value:g} {unit}"

    boxes = {row(each): each.qps for each in knob.values}
    return Boxes(title=title, label=f"{QPS}, by {label}", boxes=boxes)


def draw_fronts(fronts: list[EfficiencyFront]) -> Figure:
    """Return the fronts of throughput against efficiency, one panel per worker class."""
    return Figure(
        key="fronts",
        title="Throughput against efficiency.",
        caption="Each line joins the configurations that no other one surpasses in both.",
        panels=[
            _fronts_panel(name, [front for front in fronts if front.worker_class == name])
            for name in dict.fromkeys(front.worker_class for front in fronts)
        ],
        columns=3,
    )


def _fronts_panel(worker_class: WorkerClass, fronts: list[EfficiencyFront]) -> Scatter:
    # Those with most to gain are named; more names than these cannot be told apart.
    ranked = sorted(fronts, key=lambda front: front.saving, reverse=True)
    named = len(ranked) if len(ranked) <= _NAMED_FRONTS else _NAMED_FRONTS - 1
    lines = [[(entry.qps, efficiency(entry)) for entry in front.front] for front in ranked]
    return Scatter(
        title=f"Fronts on {worker_class}",
        x_label=QPS,
        y_label="queries per joule (QPS/W)",
        clouds={front.engine: line for front, line in zip(ranked[:named], lines, strict=False)},
        background=lines[named:],
        background_name="other engines",
    )
