"""The characterisation report: five questions, answered for the fleet of a dictionary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from profiler.reports.characterisation import figures
from profiler.reports.characterisation.fleet_profile import fronts, scale_threads, summarize_classes
from profiler.reports.characterisation.operating_modes import compare_modes, mode_name
from profiler.reports.page import Report, Section, Table
from profiler.reports.printed import CHARACTERISATION, compare
from profiler.reports.wording import UNKNOWN, correlation, factor, listing, number, percent
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from profiler.reports.characterisation.fleet_profile import (
        ClassSummary,
        FleetProfile,
        ThreadScaling,
    )
    from profiler.reports.characterisation.operating_modes import Knob, ModeComparison
    from profiler.reports.page import Cell, Figure
    from profiler.reports.printed import Comparison
    from profiler.reports.statistics import Distribution


BANNER: Final = (
    "Reconstructed: this profile was fitted to the numbers that the thesis prints. It was not "
    "measured. Only comparisons within it are meaningful."
)
_THROTTLED: Final = 0.05
"""Share of a measurement from which limited clocks matter."""


def characterise(space: FleetProfile, *, source: str, made: str) -> Report:
    classes, threads, modes = summarize_classes(space), scale_threads(space), compare_modes(space)
    findings = {
        "How does performance vary between workers?": workers_card(classes),
        "How do threads affect performance?": threads_card(threads),
        "Is performance linear in the number of threads?": correlation_card(threads),
        "How do power modes affect performance?": modes_card(modes),
        "Which limit of a power mode matters most?": knobs_card(modes),
    }
    drawn: dict[str, list[Figure]] = {
        "workers": [figures.draw_workers(space, classes)],
        "threads": [figures.draw_threads(space, each) for each in threads],
        "linearity": list(map(figures.draw_correlation, threads)),
        "modes": list(map(figures.draw_modes, modes)),
        "knobs": [figures.draw_knobs(each) for each in modes if each.knobs],
    }
    printed: list[Comparison] = []
    if space.is_reconstructed:
        printed = compare(CHARACTERISATION, compute_facts(classes, threads, modes))
    sections = [_overview(space)]
    for place, (question, key) in enumerate(zip(findings, drawn, strict=True), 1):
        title = f"{place}. {question}"
        sections.append(Section(key, title, [*drawn[key], *_printed(key, printed)]))
    sections += [_energy(space), _best(space)]
    return Report(
        title="Characterisation of engines and workers",
        summary=(
            f"{counted(len(space.engines), 'engine')} on "
            f"{counted(len(space.classes), 'worker class')}, "
            f"{counted(len(space.measured), 'measurement')}: five questions about what determines "
            "their speed, after chapter 5 of the thesis."
        ),
        facts={
            "Dictionary": source,
            "Engines": f"{len(space.engines):,}",
            "Worker classes": ", ".join(space.classes),
            "Entries": listing(f"{n:,} {label}" for label, n in space.labels().items()),
            "Queries per run": f"{space.queries:,}",
        },
        banner=BANNER if space.is_reconstructed else "",
        is_reconstructed=space.is_reconstructed,
        findings=findings,
        sections=sections,
        made=made,
    )


def _overview(space: FleetProfile) -> Section:
    rows: list[dict[str, Cell]] = []
    for name in space.classes:
        entries = [entry for entry in space.measured if entry.worker_class == name]
        configurations = space.configurations(name)
        threads = sorted({c.threads for c in configurations if c.threads})
        rows.append(
            {
                "worker class": name,
                "engines": len({entry.engine for entry in entries}),
                "configurations": len(configurations),
                "measured": len(entries),
                "predicted": sum(entry.worker_class == name for entry in space.predicted),
                "threads": listing(map(str, threads)) if threads else UNKNOWN,
                "power modes": len({c.power_mode for c in configurations if c.power_mode}),
                "providers": listing(
                    sorted({c.execution_provider or "CPU" for c in configurations})
                ),
                "power measured": "yes" if any(entry.watts for entry in entries) else "no",
            }
        )
    caption = (
        "What the dictionary has, by worker class; the fastest class is first. QPS are "
        "for one query at a time; T_pre is the time before the first query."
    )
    blocks: list[Table | str] = [Table(rows=rows, caption=caption)]
    disturbed = sum(entry.label == "disturbed" for entry in space.measured)
    if disturbed:
        blocks.append(
            f"{counted(disturbed, 'measurement')} took place while other processes used the "
            "machine (label: disturbed). Profile these again on an idle machine."
        )
    throttled = sum(entry.throttled > _THROTTLED for entry in space.measured)
    if throttled:
        blocks.append(
            f"The machine limited its clocks during {counted(throttled, 'measurement')}, "
            "because of heat or power. These QPS are lower than a cooler machine would reach."
        )
    return Section("space", "What was measured", blocks)


def _energy(space: FleetProfile) -> Section:
    found = fronts(space)
    if not found:
        note = (
            "No entry has a measured power, so that there is no front of throughput "
            "against efficiency. Machines with a readable power sensor record it while "
            "they profile."
        )
        return Section("energy", "Energy", [note])
    blocks: list[Figure | Table | str] = [figures.draw_fronts(found)]
    unmetered = [name for name in space.classes if name not in {f.worker_class for f in found}]
    if unmetered:
        blocks.append(f"No power was measured on {listing(unmetered)}.")
    ends: list[dict[str, Cell]] = [
        {
            "engine": each.engine,
            "worker class": each.worker_class,
            "fastest": str(each.front[0].configuration),
            "its QPS": each.front[0].qps,
            "most efficient": str(each.front[-1].configuration),
            "QPS of that": each.front[-1].qps,
            "J/query": each.front[-1].joules,
        }
        for each in found
    ]
    blocks.append(Table(rows=ends, caption="The two ends of each front."))
    return Section("energy", "Energy", blocks)


def _best(space: FleetProfile) -> Section:
    rows: list[dict[str, Cell]] = [
        {
            "engine": engine,
            "worker class": name,
            "configuration": str(best.configuration),
            "QPS": best.qps,
            "error (%)": best.error * 100 or None,
            "T_pre (s)": best.t_pre_s,
            "p99 (ms)": best.latency_p99_s * 1e3 or None,
            "power (W)": best.watts or None,
            "of": len(space.row(engine, name)),
            "label": best.label,
        }
        for engine in space.engines
        for name in space.classes
        if (best := space.best(engine, name)) is not None
    ]
    caption = (
        "The configuration with the highest QPS of each engine and worker class, among "
        "as many measured ones as the column “of” says. Schedulers use these first."
    )
    table = Table(rows=rows, caption=caption)
    return Section("best", "Best configurations", [table])


def _printed(key: str, comparisons: list[Comparison]) -> list[Table]:
    """Return the printed numbers about a question, whose keys start with `key`."""
    rows: list[dict[str, Cell]] = [
        {
            "quantity": each.fact.what,
            "source": each.fact.source,
            "printed": each.fact.text,
            "here": number(each.computed),
            "unit": each.fact.unit,
            "deviation": percent(each.deviation, 1),
            "verdict": each.verdict,
        }
        for each in comparisons
        if each.fact.key.startswith(f"{key}.")
    ]
    caption = "Numbers that the thesis prints, and the same from this profile."
    return [Table(rows=rows, caption=caption)] if rows else []


_MOST: Final = 4
"""Worker classes on a card; figures have the others."""


def workers_card(classes: Sequence[ClassSummary]) -> str:
    """Compare worker classes with the fastest one, over the engines that both have."""
    first, *others = classes
    return _card(
        (
            f"{first.worker_class}: {factor(each.qps_ratio)} the mean QPS of {each.worker_class}, "
            f"over {counted(each.shared, 'shared engine')}."
            if each.qps_ratio is not None
            else f"{first.worker_class} and {each.worker_class} have no engine in common."
            for each in others
        ),
        otherwise=f"Only one worker class was measured: {first.worker_class}.",
    )


def threads_card(scalings: Sequence[ThreadScaling]) -> str:
    """Give the mean speed-up with most threads, and the fewest that are near the best."""
    return _card(
        (
            f"{each.worker_class}: {factor(each.qps[max(each.qps)])} the QPS with "
            f"{max(each.qps)} threads instead of {each.base}; 95 % of the best from "
            f"{each.near_best} on."
            for each in scalings
            if len(each.qps) > 1
        ),
        otherwise="No engine was measured with several thread counts; profile with --threads.",
    )


def correlation_card(scalings: Sequence[ThreadScaling]) -> str:
    """Give the mean correlation of threads and QPS."""
    return _card(
        (
            f"{each.worker_class}: mean r = {correlation(each.pearson)}."
            for each in scalings
            if each.pearson is not None
        ),
        otherwise="A correlation needs three thread counts of one engine, measured undisturbed.",
    )


def modes_card(comparisons: Sequence[ModeComparison]) -> str:
    """Compare the fastest and the slowest mode, over the engines that both have."""
    return _card(
        (
            f"{each.worker_class}: {factor(each.worst.behind)} the QPS in "
            f"{mode_name(each.best.mode)} instead of {mode_name(each.worst.mode)}."
            for each in comparisons
            if each.best is not each.worst
        ),
        otherwise="No worker class has several power modes with an engine in common.",
    )


def knobs_card(comparisons: Sequence[ModeComparison]) -> str:
    """Give the partial correlations of the limits that modes set."""
    sentences = []
    for each in comparisons:
        known = [knob for knob in each.knobs if knob.partial is not None]
        values = ", ".join(f"{knob.name} {correlation(knob.partial)}" for knob in known)
        if known:
            without = " without MAXN" if any(knob.is_unlimited for knob in known) else ""
            sentences.append(f"{each.worker_class}: {values}{without}.")
    if sentences:
        sentences.append("Partial correlations: limits that all modes have are held constant.")
    return _card(sentences, otherwise="The modes do not differ in limits that can be told apart.")


def _card(sentences: Iterable[str], *, otherwise: str) -> str:
    known = list(sentences)
    return " ".join(known[:_MOST]) or otherwise


def compute_facts(
    classes: list[ClassSummary], threads: list[ThreadScaling], modes: list[ModeComparison]
) -> dict[str, float]:
    """Return the quantities by key: QPS, minutes, ratios, and percent for reductions."""
    return {
        **dict(_of_classes(classes)),
        **dict(_of_threads(threads)),
        **dict(_of_modes(modes)),
    }


def _distribution(key: str, values: Distribution, unit: float = 1.0) -> Iterator[tuple[str, float]]:
    yield f"{key}.low", values.low / unit
    yield f"{key}.mean", values.mean / unit
    yield f"{key}.high", values.high / unit


def _of_classes(classes: list[ClassSummary]) -> Iterator[tuple[str, float]]:
    for each in classes:
        key = f"workers.{each.worker_class}"
        yield from _distribution(f"{key}.qps", each.qps)
        yield from _distribution(f"{key}.total", each.total_s, 60.0)
        for name in ("qps_ratio", "total_ratio", "t_pre_ratio"):
            value = getattr(each, name)
            if value is not None:
                yield f"{key}.{name}", value


def _of_threads(threads: list[ThreadScaling]) -> Iterator[tuple[str, float]]:
    for each in threads:
        key = f"threads.{each.worker_class}"
        yield from ((f"{key}.qps.{level}", value) for level, value in each.qps.items())
        yield from ((f"{key}.total.{level}", value) for level, value in each.total.items())
        if each.t_pre_reduction is not None:
            yield f"{key}.t_pre", each.t_pre_reduction * 100
        if each.pearson is not None:
            yield f"{key}.pearson", each.pearson


def _of_modes(comparisons: list[ModeComparison]) -> Iterator[tuple[str, float]]:
    for each in comparisons:
        key = f"modes.{each.worker_class}"
        for summary in each.modes:
            yield from _distribution(f"{key}.{summary.mode}.qps", summary.qps)
            yield from _distribution(f"{key}.{summary.mode}.total", summary.total_s, 60.0)
            yield f"{key}.ratio.{summary.mode}", summary.behind
        for knob in each.knobs:
            yield from _of_knob(f"knobs.{each.worker_class}.{knob.name}", knob)


def _of_knob(key: str, knob: Knob) -> Iterator[tuple[str, float]]:
    unlimited = knob.values[-1].qps.mean if knob.name == "budget" and knob.is_unlimited else None
    for each in knob.values:
        if math.isfinite(each.value):
            if unlimited is not None:
                yield f"{key}_ratio.{each.value:g}", unlimited / each.qps.mean
            value = each.qps.mean if knob.name == "budget" else each.gain
            if value is not None:
                yield f"{key}.{each.value:g}", value
