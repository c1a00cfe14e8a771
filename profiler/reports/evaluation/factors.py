"""Factors by which one policy is better than another, with the kind of mean that gives them.

Averaging ratios of several experiments is ambiguous: the arithmetic mean of ratios is dominated by
cells in which the reference is near 0, the ratio of sums by the hardest experiment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.reports.statistics import geometric_mean, harmonic_mean, mean, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Others over a reference, averaged over cells.

    Attributes:
        arithmetic: mean of the cells' ratios.
        geometric: geometric mean of the cells' ratios; None if one is 0.
        harmonic: harmonic mean of the cells' ratios; None if one is 0.
        sums: ratio of the sums over all cells, also those without a ratio.
        skipped: number of cells without a ratio, because the reference is 0 there.
    """

    arithmetic: float | None
    geometric: float | None
    harmonic: float | None
    sums: float | None
    skipped: int

    @classmethod
    def of(cls, others: Sequence[float], reference: Sequence[float]) -> Factors:
        """Return the factors of values over the reference in the same cells."""
        pairs = list(zip(others, reference, strict=True))
        ratios = [other / base for other, base in pairs if base]
        return cls(
            arithmetic=mean(ratios),
            geometric=geometric_mean(ratios),
            harmonic=harmonic_mean(ratios),
            sums=ratio(sum(others), sum(reference)),
            skipped=len(pairs) - len(ratios),
        )
