"""Sentences about the figures of the characterisation, computed from the data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from synergai.reports.characterisation.modes import mode_name
from synergai.reports.statistics import mean
from synergai.reports.wording import correlation, count, duration, factor, listing, number, share
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from synergai.reports.characterisation.energy import Front
    from synergai.reports.characterisation.operating_modes import Knob, ModeComparison
    from synergai.reports.characterisation.space import Space
    from synergai.reports.characterisation.threads import ThreadScaling
    from synergai.reports.characterisation.workers import ClassSummary

_KINDS: Final = (
    (0.95, "almost linear"),
    (0.7, "strong, but not linear"),
    (0.4, "moderate"),
    (-0.4, "weak"),
    (-1.1, "inverse: more threads are slower"),
)
"""Names of correlations, by their least value."""
_MOST_CLASSES: Final = 4
"""Worker classes that a text has a sentence on."""
_KNOB_NAMES: Final = {
    "clock": "the clock",
    "cores": "the number of CPUs",
    "budget": "the power budget",
}


def _of_classes(sentences: list[str]) -> str:
    """Join sentences of one worker class each; figures have those of the rest of a large fleet."""
    rest = len(sentences) - _MOST_CLASSES
    if rest > 0:
        sentences = [
            *sentences[:_MOST_CLASSES],
            f"The figures have the other {count(rest, 'class')}.",
        ]
    return " ".join(sentences)


def describe_workers(space: Space, classes: list[ClassSummary]) -> str:
    """Describe Figure 5.1."""
    text = _of_classes([_describe_class(each) for each in classes])
    if not any(entry.t_pre_s for entry in space.measured):
        text += " T_pre was not measured, so that the total time is that of the queries."
    return text


def _describe_class(each: ClassSummary) -> str:
    if each.qps.count == 1:
        return (
            f"{each.worker_class} reaches {number(each.qps.mean)} QPS with {each.fastest}, the "
            f"only engine measured there, and takes {duration(each.total_s.mean)} in all."
        )
    return (
        f"{each.worker_class} reaches {number(each.qps.low)} ({each.slowest}) to "
        f"{number(each.qps.high)} QPS ({each.fastest}), {number(each.qps.mean)} on average, and "
        f"takes {duration(each.total_s.low)} to {duration(each.total_s.high)} in all, "
        f"{duration(each.total_s.mean)} on average."
    )


def answer_workers(classes: list[ClassSummary]) -> str:
    """Answer question 1."""
    first, *others = classes
    if not others:
        return (
            f"Only one worker class, {first.worker_class}, was measured; there is nothing to "
            f"compare it with. Its fastest engine is {first.fastest}."
        )
    comparable = [each for each in others if each.qps_ratio is not None]
    sentences = []
    if comparable:
        qps = listing(
            (f"{factor(each.qps_ratio)} that of {each.worker_class}" for each in comparable),
            most=_MOST_CLASSES,
        )
        total = listing(
            (f"{factor(each.total_ratio)} as long on {each.worker_class}" for each in comparable),
            most=_MOST_CLASSES,
        )
        sentences.append(
            f"The mean QPS of {first.worker_class} is {qps}; in total, a run takes {total}."
        )
    t_pre = [each for each in comparable if each.t_pre_ratio is not None]
    if t_pre:
        ratios = listing(
            (f"{factor(each.t_pre_ratio)} on {each.worker_class}" for each in t_pre),
            most=_MOST_CLASSES,
        )
        sentences.append(f"Relative to {first.worker_class}, T_pre is {ratios}.")
    fastest = {each.fastest for each in classes if each.qps.count > 1}
    if len(fastest) > 1:
        which = "; ".join(
            f"{engine} on {listing(c.worker_class for c in classes if c.fastest == engine)}"
            for engine in sorted(fastest)
        )
        sentences.append(f"Which engine is fastest depends on the worker: {which}.")
    elif fastest:
        sentences.append(f"{next(iter(fastest))} is the fastest engine on every class.")
    missing = [each.worker_class for each in others if each.qps_ratio is None]
    if missing:
        sentences.append(
            f"No engine was measured on both {first.worker_class} and {listing(missing)}."
        )
    return " ".join(sentences)


def describe_threads(scaling: ThreadScaling) -> str:
    """Describe Figure 5.2."""
    more = [level for level in scaling.levels if level != scaling.base and level in scaling.qps]
    if not more:
        return f"No engine was measured with {scaling.base} and more threads."
    over = "one thread" if scaling.base == 1 else f"{scaling.base} threads"
    levels = listing(str(level) for level in more)
    engines = count(len(scaling.engines), "engine")
    qps = listing(factor(scaling.qps[level]) for level in more)
    total = listing(factor(scaling.total[level]) for level in more)
    text = (
        f"{engines} with {levels} threads, compared with {over}: on average, QPS is {qps} as high "
        f"and the total time is shorter by {total}."
    )
    if scaling.t_pre_reduction is not None:
        text += f" T_pre falls by {share(max(0.0, scaling.t_pre_reduction))} at most."
    return text


def answer_threads(scalings: list[ThreadScaling]) -> str:
    """Answer question 2."""
    if not scalings:
        return (
            "No engine was measured with different thread counts and everything else equal; "
            "profile with --threads 1,2,4, for example."
        )
    return _of_classes([_answer_threads(each) for each in scalings])


def _answer_threads(scaling: ThreadScaling) -> str:
    most, name = max(scaling.qps), scaling.worker_class
    if most == scaling.base:
        return f"On {name}, no two thread counts were measured for the same engine."
    sentence = (
        f"On {name}, {most} threads give {factor(scaling.qps[most])} the QPS of {scaling.base} on "
        f"average and {factor(scaling.total[most])} the speed in total time"
    )
    near = scaling.near_best
    if near < most:
        return (
            f"{sentence}; {counted(near, 'thread')} already "
            f"{'gives' if near == 1 else 'give'} 95 % of the highest mean QPS."
        )
    steps = sorted(scaling.qps)
    last = scaling.qps[most] / scaling.qps[steps[-2]]
    return f"{sentence}. The step from {steps[-2]} to {most} threads adds {share(last - 1)}."


def describe_correlation(scaling: ThreadScaling) -> str:
    """Describe the correlation of threads and QPS."""
    known = [each for each in scaling.engines if each.pearson is not None]
    if not known:
        return "With these measurements the correlation is undefined."
    highest = max(known, key=lambda each: each.pearson or 0.0)
    lowest = min(known, key=lambda each: each.pearson or 0.0)
    if len(known) == 1:
        text = f"r is {correlation(highest.pearson)} for {highest.engine}."
    else:
        text = (
            f"r is {correlation(scaling.pearson)} on average, highest for {highest.engine} "
            f"({correlation(highest.pearson)}) and lowest for {lowest.engine} "
            f"({correlation(lowest.pearson)})."
        )
    if len(scaling.levels) == 2:
        text += " Two thread counts always lie on a line: r says only whether more threads help."
    fewer = [each for each in scaling.engines if each.near_best < max(each.entries)]
    return (
        f"{text} {len(fewer)} of {count(len(scaling.engines), 'engine')} reach 95 % of their "
        "highest QPS with fewer than all threads."
    )


def answer_correlation(scalings: list[ThreadScaling]) -> str:
    """Answer question 3."""
    known = [each for each in scalings if each.pearson is not None]
    if not known:
        return "There are no thread counts to correlate with QPS."
    return _of_classes([_answer_correlation(each) for each in known])


def _answer_correlation(scaling: ThreadScaling) -> str:
    r = scaling.pearson or 0.0
    kind = next(kind for least, kind in _KINDS if r >= least)
    text = (
        f"On {scaling.worker_class}, threads and QPS correlate with r = {correlation(r)} on "
        f"average: the relation is {kind}."
    )
    collapsing = [
        f"{e.engine} (fastest with {e.best} of {max(e.entries)})"
        for e in scaling.engines
        if e.collapses
    ]
    if collapsing:
        verb = "loses" if len(collapsing) == 1 else "lose"
        text += f" {listing(collapsing, most=3)} {verb} speed with all threads."
    return text


def describe_modes(comparison: ModeComparison) -> str:
    """Describe Figure 5.3."""
    best, worst = comparison.best, comparison.worst
    others = [each for each in comparison.modes if each is not best]
    ratios = listing(
        f"{factor(each.behind)} over {mode_name(each.mode)}"
        for each in sorted(others, key=lambda each: each.behind)
    )
    sentences = []
    for title, each in (("fastest", best), ("slowest", worst)):
        sentences.append(
            f"{mode_name(each.mode).capitalize() if each.mode.isdecimal() else each.mode} is the "
            f"{title}: {number(each.qps.low)} to {number(each.qps.high)} QPS, "
            f"{number(each.qps.mean)} on average, and {duration(each.total_s.low)} to "
            f"{duration(each.total_s.high)} in all, {duration(each.total_s.mean)} on average."
        )
    sentences.append(f"The fastest has {ratios}, as ratios of mean QPS.")
    return " ".join(sentences)


def answer_modes(comparisons: list[ModeComparison]) -> str:
    """Answer question 4."""
    if not comparisons:
        return "No worker class was measured in more than one power mode."
    return _of_classes(
        [
            f"On {each.worker_class}, {mode_name(each.best.mode)} has "
            f"{factor(each.worst.behind)} the QPS of {mode_name(each.worst.mode)}"
            f"{_limits_text(each)}."
            for each in comparisons
        ]
    )


def _limits_text(each: ModeComparison) -> str:
    best, worst = each.best.limits, each.worst.limits
    if best.mhz is None or worst.mhz is None:
        return ""
    return f" at {best.mhz:g} instead of {worst.mhz:g} MHz"


def describe_knobs(comparison: ModeComparison) -> str:
    """Describe Figure 5.4 or 5.5."""
    sentences = [_describe_knob(knob) for knob in comparison.knobs]
    sentences.append(
        "Modes differ in several limits at once, so that the panels overlap in what they show."
        if len(comparison.knobs) > 1
        else ""
    )
    return " ".join(sentence for sentence in sentences if sentence)


def _describe_knob(knob: Knob) -> str:
    first, *others = knob.values
    unit = {"clock": "MHz", "cores": "CPUs", "budget": "W"}[knob.name]

    def name(value: float) -> str:
        return "without limit" if math.isinf(value) else f"{value:g} {unit}"

    if knob.name == "budget":
        values = listing(f"{number(v.qps.mean)} ({name(v.value)})" for v in knob.values)
        return f"Mean QPS by power budget: {values}."
    gains = listing(f"{factor(v.gain)} ({name(v.value)})" for v in others)
    start = "By clock" if knob.name == "clock" else "By CPUs online"
    return f"{start}, QPS over that at {name(first.value)}: {gains}, mean of the engines' ratios."


def answer_knobs(comparisons: list[ModeComparison]) -> str:
    """Answer question 5."""
    if not comparisons:
        return "Without several power modes there is no limit to compare."
    sentences = []
    for each in comparisons:
        known = [knob for knob in each.knobs if knob.pearson is not None]
        if not known:
            sentences.append(
                f"The limits that the modes of {each.worker_class} set are not known from their "
                "names, so that clock, CPUs and power budget cannot be told apart."
            )
            continue
        ranked = sorted(known, key=lambda knob: abs(knob.pearson or 0.0), reverse=True)
        first, *rest = ranked
        text = f"On {each.worker_class}, QPS follows {_KNOB_NAMES[first.name]} most closely (r = "
        text += correlation(first.pearson)
        text += (
            ")"
            if not rest
            else "), ahead of "
            + listing(f"{_KNOB_NAMES[knob.name]} ({correlation(knob.pearson)})" for knob in rest)
        )
        sentences.append(f"{text}.")
    return _of_classes(sentences)


def describe_fronts(fronts: list[Front]) -> str:
    """Describe the fronts of throughput against efficiency."""
    worth = [front for front in fronts if len(front.front) > 1]
    metered = count(len(fronts), "pair")
    text = (
        f"{metered} of engine and worker class with measured power. Each line joins the "
        "configurations that no other surpasses in both QPS and queries per joule."
    )
    if not worth:
        return f"{text} In all of them the fastest configuration is also the most efficient."
    saving, price = mean(f.saving for f in worth), mean(f.price for f in worth)
    return (
        f"{text} In {len(worth)} of them the fastest configuration is not the most efficient, "
        f"which saves {share(saving)} of the energy per query on average and gives up "
        f"{share(price)} of the QPS."
    )


def describe_set_aside(space: Space) -> str:
    """Describe the entries that nothing is computed from."""
    total = len(space.measured) + len(space.predicted) + len(space.stale)
    parts = []
    if space.predicted:
        parts.append(f"{len(space.predicted):,} were predicted by a search instead of measured")
    if space.stale:
        parts.append(
            f"{len(space.stale):,} are stale, measured with another model file or runtime than "
            "the newest of the engine"
        )
    text = (
        f"Of {count(total, 'entry')}, {listing(parts)}. They are drawn as outlines; no other "
        "figure and no sentence is based on them."
    )
    better = 0
    for name in space.classes:
        for engine in space.engines:
            best = space.best(engine, name)
            guesses = [
                e.qps for e in space.predicted if (e.engine, e.worker_class) == (engine, name)
            ]
            better += best is not None and max(guesses, default=0.0) > best.qps
    if better:
        text += (
            f" For {count(better, 'pair')} of engine and class, a predicted configuration exceeds "
            "the best measured one: measure it."
        )
    return text
