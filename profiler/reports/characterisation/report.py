"""The characterisation report: five questions, answered for the fleet of a dictionary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from profiler.reports.characterisation import figures
from profiler.reports.characterisation.energy import fronts
from profiler.reports.characterisation.modes import mode_name
from profiler.reports.characterisation.operating_modes import compare_modes
from profiler.reports.characterisation.threads import scale_threads
from profiler.reports.characterisation.workers import summarize_classes
from profiler.reports.comparison import compare
from profiler.reports.document import Answer, Note, Report, Section, Table
from profiler.reports.printed import CHARACTERISATION
from profiler.reports.wording import UNKNOWN, correlation, factor, listing, number, percent
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from profiler.reports.characterisation.fleet_profile import FleetProfile
    from profiler.reports.characterisation.operating_modes import Knob, ModeComparison
    from profiler.reports.characterisation.threads import ThreadScaling
    from profiler.reports.characterisation.workers import ClassSummary
    from profiler.reports.comparison import Comparison
    from profiler.reports.document import Block
    from profiler.reports.statistics import Distribution


BANNER: Final = (
    "Reconstructed: this profile was fitted to the numbers that the thesis prints. It was not "
    "measured. Only comparisons within it are meaningful."
)
_THROTTLED: Final = 0.05
"""Share of a measurement from which limited clocks matter."""
_QUESTIONS: Final = (
    "How does performance vary between workers?",
    "How do threads affect performance?",
    "Is performance linear in the number of threads?",
    "How do power modes affect performance?",
    "Which limit of a power mode matters most?",
)


def characterise(space: FleetProfile, *, source: str, made: str) -> Report:
    """Return the report on a fleet."""
    classes, threads, modes = summarize_classes(space), scale_threads(space), compare_modes(space)
    answers = (
        workers_card(classes),
        threads_card(threads),
        correlation_card(threads),
        modes_card(modes),
        knobs_card(modes),
    )
    printed: list[Comparison] = []
    if space.is_reconstructed:
        printed = compare(CHARACTERISATION, compute_facts(classes, threads, modes))
    findings = tuple(Answer(*pair) for pair in zip(_QUESTIONS, answers, strict=True))
    drawn: tuple[tuple[str, tuple[Block, ...]], ...] = (
        ("workers", (figures.draw_workers(space, classes),)),
        ("threads", tuple(figures.draw_threads(space, each) for each in threads)),
        ("linearity", tuple(map(figures.draw_correlation, threads))),
        ("modes", tuple(map(figures.draw_modes, modes))),
        ("knobs", tuple(figures.draw_knobs(each) for each in modes if each.knobs)),
    )
    sections = [
        _overview(space),
        *(
            Section(
                key=key,
                title=f"{place}. {finding.question}",
                blocks=(*blocks, *_printed(key, printed)),
            )
            for place, ((key, blocks), finding) in enumerate(zip(drawn, findings, strict=True), 1)
        ),
        _energy(space),
        _best(space),
    ]
    if space.predicted or space.stale:
        blocks = (figures.draw_set_aside(space),)
        sections.append(Section(key="set-aside", title="Entries set aside", blocks=blocks))
    if space.is_reconstructed:
        sections = [section.reconstructed() for section in sections]
    return Report(
        title="Characterisation of engines and workers",
        summary=(
            f"{counted(len(space.engines), 'engine')} on "
            f"{counted(len(space.classes), 'worker class')}, "
            f"{counted(len(space.measured), 'measurement')}: five questions about what determines "
            "their speed, after chapter 5 of the thesis."
        ),
        facts=(
            ("Dictionary", source),
            ("Engines", f"{len(space.engines):,}"),
            ("Worker classes", ", ".join(space.classes)),
            ("Entries", listing(f"{n:,} {label}" for label, n in space.labels().items())),
            ("Queries per run", f"{space.queries:,}"),
        ),
        banner=BANNER if space.is_reconstructed else "",
        findings=findings,
        sections=tuple(sections),
        colophon=made,
    )


def _overview(space: FleetProfile) -> Section:
    rows = []
    for name in space.classes:
        entries = [entry for entry in space.measured if entry.worker_class == name]
        configurations = space.configurations(name)
        threads = sorted({c.threads for c in configurations if c.threads})
        modes = {c.power_mode for c in configurations if c.power_mode}
        providers = sorted({c.execution_provider or "CPU" for c in configurations})
        rows.append(
            (
                name,
                len({entry.engine for entry in entries}),
                len(configurations),
                len(entries),
                sum(entry.worker_class == name for entry in space.predicted),
                listing(map(str, threads)) if threads else UNKNOWN,
                len(modes),
                listing(providers),
                "yes" if any(entry.watts for entry in entries) else "no",
            )
        )
    blocks: list[Block] = [
        Table(
            columns=(
                "worker class",
                "engines",
                "configurations",
                "measured",
                "predicted",
                "threads",
                "power modes",
                "providers",
                "power measured",
            ),
            rows=tuple(rows),
            caption="What the dictionary has, by worker class; the fastest class is first. QPS are "
            "for one query at a time; T_pre is the time before the first query.",
            file="space",
        ),
    ]
    disturbed = sum(entry.label == "disturbed" for entry in space.measured)
    if disturbed:
        blocks.append(
            Note(
                f"{counted(disturbed, 'measurement')} took place while other processes used the "
                "machine (label: disturbed). Profile these again on an idle machine."
            )
        )
    throttled = sum(entry.throttled > _THROTTLED for entry in space.measured)
    if throttled:
        blocks.append(
            Note(
                f"The machine limited its clocks during {counted(throttled, 'measurement')}, "
                "because of heat or power. These QPS are lower than a cooler machine would reach."
            )
        )
    return Section(key="space", title="What was measured", blocks=tuple(blocks))


def _energy(space: FleetProfile) -> Section:
    found = fronts(space)
    if not found:
        return Section(
            key="energy",
            title="Energy",
            blocks=(
                Note(
                    "No entry has a measured power, so that there is no front of throughput "
                    "against efficiency. Machines with a readable power sensor record it while "
                    "they profile."
                ),
            ),
        )
    blocks: list[Block] = [figures.draw_fronts(found)]
    unmetered = [name for name in space.classes if name not in {f.worker_class for f in found}]
    if unmetered:
        blocks.append(Note(f"No power was measured on {listing(unmetered)}."))
    blocks.append(
        Table(
            columns=(
                "engine",
                "worker class",
                "fastest",
                "QPS",
                "most efficient",
                "QPS ",
                "J/query",
            ),
            rows=tuple(
                (
                    front.engine,
                    front.worker_class,
                    str(front.front[0].configuration),
                    front.front[0].qps,
                    str(front.front[-1].configuration),
                    front.front[-1].qps,
                    front.front[-1].joules,
                )
                for front in found
            ),
            caption="The two ends of each front.",
            file="front-ends",
        )
    )
    return Section(key="energy", title="Energy", blocks=tuple(blocks))


def _best(space: FleetProfile) -> Section:
    rows = []
    for engine in space.engines:
        for name in space.classes:
            best = space.best(engine, name)
            if best is not None:
                configurations = len(space.row(engine, name))
                watts = best.watts or None
                rows.append(
                    (
                        engine,
                        name,
                        str(best.configuration),
                        best.qps,
                        best.error * 100 or None,
                        best.t_pre_s,
                        best.latency_p99_s * 1e3 or None,
                        watts,
                        configurations,
                        best.label,
                    )
                )
    return Section(
        key="best",
        title="Best configurations",
        blocks=(
            Table(
                columns=(
                    "engine",
                    "worker class",
                    "configuration",
                    "QPS",
                    "error (%)",
                    "T_pre (s)",
                    "p99 (ms)",
                    "power (W)",
                    "of",
                    "label",
                ),
                rows=tuple(rows),
                caption=(
                    "The configuration with the highest QPS of each engine and worker class, among "
                    "as many measured ones as the column “of” says. Schedulers use these first."
                ),
                file="best",
            ),
        ),
    )


def _printed(key: str, comparisons: list[Comparison]) -> tuple[Table, ...]:
    """Return the printed numbers about a question, whose keys start with `key`."""
    rows = [each for each in comparisons if each.fact.key.startswith(f"{key}.")]
    if not rows:
        return ()
    return (
        Table(
            columns=("quantity", "source", "printed", "here", "unit", "deviation", "verdict"),
            rows=tuple(
                (
                    each.fact.what,
                    each.fact.source,
                    each.fact.text,
                    number(each.computed),
                    each.fact.unit,
                    percent(each.deviation, 1),
                    each.verdict,
                )
                for each in rows
            ),
            caption="Numbers that the thesis prints, and the same from this profile.",
            file=f"printed-{key}",
        ),
    )


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
    for each in knob.values:
        if math.isfinite(each.value):
            value = each.qps.mean if knob.name == "budget" else each.gain
            if value is not None:
                yield f"{key}.{each.value:g}", value
