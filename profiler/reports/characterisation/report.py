"""The characterisation report: five questions, answered for the fleet of a dictionary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from profiler.reports.characterisation import cards, figures
from profiler.reports.characterisation.energy import fronts
from profiler.reports.characterisation.facts import compute_facts
from profiler.reports.characterisation.operating_modes import compare_modes
from profiler.reports.characterisation.threads import scale_threads
from profiler.reports.characterisation.workers import summarize_classes
from profiler.reports.comparison import compare
from profiler.reports.document import Answer, Note, Report, Section, Table
from profiler.reports.printed import CHARACTERISATION
from profiler.reports.wording import UNKNOWN, listing, number, percent
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from profiler.reports.characterisation.fleet_profile import FleetProfile
    from profiler.reports.comparison import Comparison
    from profiler.reports.document import Block

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
        cards.workers_card(classes),
        cards.threads_card(threads),
        cards.correlation_card(threads),
        cards.modes_card(modes),
        cards.knobs_card(modes),
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
