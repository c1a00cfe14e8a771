"""Statistics of the reports: distributions, correlation, means of ratios."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Summary of a set of values, in their unit.

    Attributes:
        count: number of values.
        low: smallest value.
        lower: 25th percentile, linearly interpolated, as are the others.
        median: 50th percentile.
        upper: 75th percentile.
        p99: 99th percentile.
        high: largest value.
        mean: arithmetic mean.
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
        """Return the distribution of `values`.

        Raises:
            ValueError: there are no values.
        """
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


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return Pearson's correlation coefficient.

    Returns:
        From -1 to 1; None if it is undefined: fewer than two points, or all equal in x or in y.

    Raises:
        ValueError: the lengths differ.
    """
    if len(xs) != len(ys):
        raise ValueError(f"{len(xs)} x values and {len(ys)} y values")
    if len(xs) < 2:
        return None
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    spread_x = math.fsum((x - mean_x) ** 2 for x in xs)
    spread_y = math.fsum((y - mean_y) ** 2 for y in ys)
    if spread_x == 0 or spread_y == 0:
        return None
    covariance = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return covariance / math.sqrt(spread_x) / math.sqrt(spread_y)
