"""Figures of the characterisation, after Figures 5.1 to 5.5 of the thesis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from profiler.reports.characterisation.energy import efficiency
from profiler.reports.characterisation.modes import mode_name
from profiler.reports.charts import Axis, Boxes, Cloud, Dots, Lines, Polyline, Scatter, Series
from profiler.reports.document import Figure, Table
from profiler.reports.wording import correlation
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from profiler.reports.characterisation.energy import EfficiencyFront
    from profiler.reports.characterisation.fleet_profile import FleetProfile
    from profiler.reports.characterisation.operating_modes import Knob, KnobValue, ModeComparison
    from profiler.reports.characterisation.threads import ThreadScaling
    from profiler.reports.characterisation.workers import ClassSummary
    from profiler.reports.charts import Chart
    from synergai.domain import EngineName, WorkerClass
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

    def dots(title: str, label: str, value: Callable[[ProfileEntry], float | None]) -> Dots:
        series = []
        for name in space.classes:
            best = [space.best(engine, name) for engine in space.engines]
            values = tuple(None if entry is None else value(entry) for entry in best)
            series.append(Series(name=name, values=values))
        return Dots(
            title=title,
            rows=tuple(space.engines),
            series=tuple(series),
            axis=Axis(label, log=True),
        )

    panels: list[Chart] = [dots("Throughput", QPS, lambda entry: entry.qps)]
    if any(entry.t_pre_s for entry in space.measured):
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
        + ("" if any(e.t_pre_s for e in space.measured) else " T_pre was not measured."),
        panels=tuple(panels),
        columns=2,
        data=Table(
            file="figure-5-1",
            columns=(
                "engine",
                "worker_class",
                "configuration",
                "qps",
                "t_pre_s",
                "engine_s",
                "total_s",
                "label",
            ),
            rows=tuple(
                (
                    entry.engine,
                    entry.worker_class,
                    str(entry.configuration),
                    entry.qps,
                    entry.t_pre_s,
                    space.engine_time_s(entry),
                    space.total_time_s(entry),
                    entry.label,
                )
                for engine in space.engines
                for name in space.classes
                if (entry := space.best(engine, name)) is not None
            ),
        ),
    )


def draw_threads(space: FleetProfile, scaling: ThreadScaling) -> Figure:
    """Return Figure 5.2: a worker class over thread counts."""
    entries = [entry for each in scaling.engines for entry in each.entries.values()]
    unit, unit_name = _time_unit(max(map(space.total_time_s, entries)))
    rows = tuple(each.engine for each in scaling.engines)

    def dots(title: str, label: str, value: Callable[[ProfileEntry], float]) -> Dots:
        return Dots(
            title=title,
            rows=rows,
            series=tuple(
                Series(
                    name=str(level) if level != scaling.base else counted(level, "thread"),
                    values=tuple(
                        value(e) if (e := each.entries.get(level)) is not None else None
                        for each in scaling.engines
                    ),
                )
                for level in scaling.levels
            ),
            axis=Axis(label, log=True),
            ordered=True,
        )

    lines = [
        Polyline(
            name="one engine",
            points=tuple((float(level), value) for level, value in each.qps.items()),
            legend=each is scaling.engines[0],
        )
        for each in scaling.engines
    ]
    means = (("mean of QPS", scaling.qps), ("mean of total time", scaling.total))
    lines += [
        Polyline(
            name=name, points=tuple((float(level), v) for level, v in values.items()), emphasis=True
        )
        for name, values in means
    ]
    ideal = tuple((float(level), level / scaling.base) for level in scaling.levels)
    lines.append(Polyline(name="linear", points=ideal, dashed=True))
    return Figure(
        key=f"figure-5-2-{scaling.worker_class}",
        title=f"Threads on {scaling.worker_class} (Figure 5.2).",
        caption=f"Over {counted(scaling.base, 'thread')}; thick lines are means over engines.",
        panels=(
            dots("Throughput by threads", QPS, lambda entry: entry.qps),
            dots(
                "Total time by threads",
                f"{unit_name} for T_pre and {space.queries:,} queries",
                lambda entry: space.total_time_s(entry) / unit,
            ),
            Lines(
                title="Speed-up",
                lines=tuple(lines),
                x=Axis("threads", log=True),
                y=Axis(f"times that with {scaling.base}", log=True),
            ),
        ),
        columns=3,
        data=Table(
            file=f"figure-5-2-{scaling.worker_class}",
            columns=("engine", "threads", "qps", "qps_speedup", "total_s", "total_speedup"),
            rows=tuple(
                (
                    each.engine,
                    level,
                    entry.qps,
                    each.qps[level],
                    space.total_time_s(entry),
                    each.total[level],
                )
                for each in scaling.engines
                for level, entry in each.entries.items()
            ),
        ),
    )


def draw_correlation(scaling: ThreadScaling) -> Figure:
    """Return the correlation of threads and QPS by engine, and the thread counts that suffice."""
    rows = tuple(each.engine for each in scaling.engines)
    least = min((e.pearson for e in scaling.engines if e.pearson is not None), default=0.0)
    return Figure(
        key=f"correlation-{scaling.worker_class}",
        title=f"Linearity of threads and QPS on {scaling.worker_class}.",
        caption="Of engines with three or more thread counts, without disturbed measurements.",
        panels=(
            Dots(
                title="Pearson correlation of threads and QPS",
                rows=rows,
                series=(Series(name="r", values=tuple(each.pearson for each in scaling.engines)),),
                axis=Axis("r (1: linear)", limits=(-1.05 if least < -0.2 else -0.25, 1.05)),
            ),
            Dots(
                title="Threads needed",
                rows=rows,
                series=(
                    Series(
                        name="highest QPS",
                        values=tuple(float(each.best) for each in scaling.engines),
                    ),
                    Series(
                        name="95 % of it",
                        values=tuple(float(each.near_best) for each in scaling.engines),
                        hollow=True,
                    ),
                ),
                axis=Axis("threads", limits=(0, scaling.levels[-1] * 1.05)),
            ),
        ),
        columns=2,
        data=Table(
            file=f"correlation-{scaling.worker_class}",
            columns=("engine", "pearson_r", "best_threads", "threads_for_95_percent"),
            rows=tuple(
                (each.engine, each.pearson, each.best, each.near_best) for each in scaling.engines
            ),
        ),
    )


def draw_modes(comparison: ModeComparison) -> Figure:
    """Return Figure 5.3: a worker class over power modes."""
    name = comparison.worker_class
    unit, unit_name = _time_unit(max(each.total_s.high for each in comparison.modes))
    rows = tuple(mode_name(each.mode) for each in comparison.modes)
    best = mode_name(comparison.best.mode)
    return Figure(
        key=f"figure-5-3-{name}",
        title=f"Power modes of {name} (Figure 5.3).",
        caption="Each engine with its best thread count in the mode.",
        panels=(
            Boxes(
                title="Throughput over engines",
                rows=rows,
                boxes=tuple(each.qps for each in comparison.modes),
                axis=Axis(QPS),
                highlighted=(best,),
            ),
            Boxes(
                title="Total time over engines",
                rows=rows,
                boxes=tuple(each.total_s.scaled(1 / unit) for each in comparison.modes),
                axis=Axis(unit_name),
                highlighted=(best,),
            ),
        ),
        columns=2,
        data=Table(
            file=f"figure-5-3-{name}",
            columns=(
                "mode",
                "engines",
                "qps_low",
                "qps_median",
                "qps_mean",
                "qps_high",
                "total_s_low",
                "total_s_median",
                "total_s_mean",
                "total_s_high",
                "best_mode_over_this",
            ),
            rows=tuple(
                (
                    each.mode,
                    each.qps.count,
                    each.qps.low,
                    each.qps.median,
                    each.qps.mean,
                    each.qps.high,
                    each.total_s.low,
                    each.total_s.median,
                    each.total_s.mean,
                    each.total_s.high,
                    each.behind,
                )
                for each in comparison.modes
            ),
        ),
    )


def draw_knobs(comparison: ModeComparison) -> Figure:
    """Return Figure 5.4 or 5.5: QPS over the limits that the modes of a class set."""
    name = comparison.worker_class
    source = {"agx": " (Figure 5.4)", "nx": " (Figure 5.5)"}.get(name, " (after Figure 5.4)")
    return Figure(
        key=f"figure-5-4-{name}",
        title=f"Limits of the modes of {name}{source}.",
        caption=_knobs_caption(comparison),
        panels=tuple(_knob_panel(knob) for knob in comparison.knobs),
        columns=3,
        data=Table(
            file=f"figure-5-4-{name}",
            columns=("limit", "value", "qps_low", "qps_median", "qps_mean", "qps_high", "gain"),
            rows=tuple(
                (
                    knob.name,
                    "none" if math.isinf(each.value) else each.value,
                    each.qps.low,
                    each.qps.median,
                    each.qps.mean,
                    each.qps.high,
                    each.gain,
                )
                for knob in comparison.knobs
                for each in knob.values
            ),
        ),
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

    return Boxes(
        title=title,
        rows=tuple(row(each) for each in knob.values),
        boxes=tuple(each.qps for each in knob.values),
        axis=Axis(f"{QPS}, by {label}"),
    )


def draw_fronts(fronts: list[EfficiencyFront]) -> Figure:
    """Return the fronts of throughput against efficiency, one panel per worker class."""
    classes = list(dict.fromkeys(front.worker_class for front in fronts))
    panels: list[Chart] = []
    for name in classes:
        of_class = [front for front in fronts if front.worker_class == name]
        # Those with most to gain are named; more names than these cannot be told apart.
        ranked = sorted(of_class, key=lambda front: front.saving, reverse=True)
        named = len(ranked) if len(ranked) <= _NAMED_FRONTS else _NAMED_FRONTS - 1
        clouds = [
            Cloud(
                name=front.engine if place < named else "other engines",
                points=tuple((entry.qps, efficiency(entry)) for entry in front.front),
                line=True,
                muted=place >= named,
            )
            for place, front in enumerate(ranked)
        ]
        panels.append(
            Scatter(
                title=f"Fronts on {name}",
                clouds=tuple(clouds),
                x=Axis(QPS, log=True),
                y=Axis("queries per joule (QPS/W)", log=True),
            )
        )
    return Figure(
        key="fronts",
        title="Throughput against efficiency.",
        caption="Each line joins the configurations that no other one surpasses in both.",
        panels=tuple(panels),
        columns=3,
        data=Table(
            file="fronts",
            columns=("engine", "worker_class", "configuration", "qps", "watts", "joules", "front"),
            rows=tuple(
                (
                    entry.engine,
                    entry.worker_class,
                    str(entry.configuration),
                    entry.qps,
                    entry.watts,
                    entry.joules,
                    "yes" if entry in front.front else "no",
                )
                for front in fronts
                for entry in front.entries
            ),
        ),
    )


def draw_set_aside(space: FleetProfile) -> Figure:
    """Return the best measured QPS next to the best of the entries without computed ones."""
    panels: list[Chart] = []
    for name in dict.fromkeys(e.worker_class for e in (*space.predicted, *space.stale)):
        measured = [space.best(engine, name) for engine in space.engines]
        columns = {
            "best measured": _best_qps([entry for entry in measured if entry is not None], name),
            "best of the predicted": _best_qps(space.predicted, name),
            "best of the stale": _best_qps(space.stale, name),
        }
        rows = tuple(sorted({engine for column in columns.values() for engine in column}))
        panels.append(
            Dots(
                title=f"Measured and others on {name}",
                rows=rows,
                series=tuple(
                    Series(
                        name=title,
                        values=tuple(column.get(row) for row in rows),
                        hollow=title != "best measured",
                    )
                    for title, column in columns.items()
                    if column
                ),
                axis=Axis(QPS, log=True),
            )
        )
    return Figure(
        key="set-aside",
        title="Entries set aside.",
        caption=(
            f"{len(space.predicted):,} predicted, {len(space.stale):,} stale. Nothing else is "
            "based on them."
        ),
        panels=tuple(panels),
        columns=2,
        data=Table(
            file="set-aside",
            columns=("engine", "worker_class", "configuration", "qps", "reason"),
            rows=tuple(
                (entry.engine, entry.worker_class, str(entry.configuration), entry.qps, reason)
                for reason, entries in (("predicted", space.predicted), ("stale", space.stale))
                for entry in entries
            ),
        ),
    )


def _best_qps(entries: list[ProfileEntry], worker_class: WorkerClass) -> dict[EngineName, float]:
    """Return the highest QPS on a class by engine."""
    best: dict[EngineName, float] = {}
    for entry in entries:
        if entry.worker_class == worker_class:
            best[entry.engine] = max(entry.qps, best.get(entry.engine, 0.0))
    return best
