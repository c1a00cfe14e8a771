"""Statistics of the reports: distributions, correlation, means of ratios."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


LEAST_POINTS: Final = 3
"""Points of a correlation: two always lie on a line."""
_FEW: Final = (12.706, 4.303, 3.182, 2.776)
"""Student's t, 97.5 %, by degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Summary of a set of values, in their unit.

    Attributes:
        lower: 25th percentile, linearly interpolated, as are the others.
        upper: 75th percentile.
        p99: 99th percentile.
    """

    count: int
    low: float
    lower: float
    median: float
    upper: float
    p99: float
    high: float
    mean: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        known = list(values)
        if not known:
            raise ValueError("a distribution needs at least one value")
        lower, median, upper, p99 = np.percentile(known, [25.0, 50.0, 75.0, 99.0])
        return cls(
            count=len(known),
            low=min(known),
            lower=float(lower),
            median=float(median),
            upper=float(upper),
            p99=float(p99),
            high=max(known),
            mean=statistics.fmean(known),
        )

    def scaled(self, factor: float) -> Distribution:
        """Return the distribution in another unit, in which values are `factor` times as large."""
        return Distribution(
            count=self.count,
            low=self.low * factor,
            lower=self.lower * factor,
            median=self.median * factor,
            upper=self.upper * factor,
            p99=self.p99 * factor,
            high=self.high * factor,
            mean=self.mean * factor,
        )


def mean(values: Iterable[float]) -> float | None:
    """Return the arithmetic mean; None without values."""
    known = list(values)
    return statistics.fmean(known) if known else None


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean; None without values, or if one is not positive."""
    known = list(values)
    return statistics.geometric_mean(known) if known and min(known) > 0 else None


def harmonic_mean(values: Iterable[float]) -> float | None:
    """Return the harmonic mean; None without values, or if one is not positive."""
    known = list(values)
    return statistics.harmonic_mean(known) if known and min(known) > 0 else None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return a quotient; None if a part is unknown or the denominator is 0."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Others over a reference, averaged over cells by several kinds of mean.

    Averaging ratios of several experiments is ambiguous: the arithmetic mean of ratios is dominated
    by cells in which the reference is near 0, the ratio of sums by the hardest experiment.

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
        pairs = list(zip(others, reference, strict=True))
        ratios = [other / base for other, base in pairs if base]
        return cls(
            arithmetic=mean(ratios),
            geometric=geometric_mean(ratios),
            harmonic=harmonic_mean(ratios),
            sums=ratio(sum(others), sum(reference)),
            skipped=len(pairs) - len(ratios),
        )


def margin(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of a mean; 0 for a single value."""
    freedom = len(values) - 1
    if freedom < 1:
        return 0.0
    if freedom <= len(_FEW):
        quantile = _FEW[freedom - 1]
    else:  # Cornish and Fisher's expansion of Student's t
        z = 1.959964
        quantile = z + (z**3 + z) / (4 * freedom)
        quantile += (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def partial_correlation(
    values: Sequence[float], ys: Sequence[float], held: Sequence[Sequence[float]]
) -> float | None:
    """Return the correlation of values and ys with other quantities held constant.

    Returns:
        Pearson's correlation of what a linear fit to `held` leaves of both; None if the others
        explain all of either, or it is undefined.
    """
    others = np.column_stack([np.ones(len(values)), *held])
    pair = np.column_stack([values, ys])
    rest = pair - others @ np.linalg.lstsq(others, pair, rcond=None)[0]
    if np.any(np.ptp(rest, axis=0) <= 1e-9 * np.ptp(pair, axis=0)):
        return None
    return pearson(rest[:, 0].tolist(), rest[:, 1].tolist())


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return Pearson's correlation coefficient.

    Returns:
        From -1 to 1; None if it is undefined: fewer than two points, or all equal in x or in y.
    """
    try:
        return statistics.correlation(xs, ys)
    except statistics.StatisticsError:
        return None
