"""The quantities of chapter 5, under the keys of `profiler.reports.printed`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from profiler.reports.characterisation.operating_modes import Knob, ModeComparison
    from profiler.reports.characterisation.threads import ThreadScaling
    from profiler.reports.characterisation.workers import ClassSummary
    from profiler.reports.statistics import Distribution


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
