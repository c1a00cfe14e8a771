"""Cards at the top of the characterisation: one per question, from short templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from profiler.reports.characterisation.modes import mode_name
from profiler.reports.wording import correlation, factor
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from profiler.reports.characterisation.operating_modes import ModeComparison
    from profiler.reports.characterisation.threads import ThreadScaling
    from profiler.reports.characterisation.workers import ClassSummary

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
