"""Arrival processes: request rates over time, and send times that follow them. Pure.

A `Curve` is a rate over time, represented by the inverse of its integral: ``instant(n)`` is the
time by which `n` requests are expected. With even gaps, requests are sent at the instants of 0, 1,
2, …; with random gaps, at the arrivals of a Poisson process of rate 1, which the inverse maps to
one of the curve's rate.
"""

from __future__ import annotations

import csv
import math
import random
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAX_REQUESTS: Final = 10_000_000
MAX_RATE: Final = 1e6
"""Requests per second, beyond what one machine can send."""
_CONSTANT_BELOW: Final = 1e-9
"""Relative change of rate below which a curve is treated as constant."""


class Curve(Protocol):
    """A request rate over time."""

    @property
    def duration(self) -> float:
        """Duration in seconds."""

    @property
    def total(self) -> float:
        """Expected total number of requests."""

    def instant(self, number: float) -> float:
        """Return the time in seconds by which `number` requests (up to `total`) are expected."""


@dataclass(frozen=True, slots=True)
class _Ramp:
    """A ramp from `first` to `last` requests per second in `duration` seconds."""

    first: float
    last: float
    duration: float

    def __post_init__(self) -> None:
        if not (self.first > 0 and self.last > 0 and self.duration > 0):
            raise InvalidInput(
                f"rates and duration of a trace must be positive, not {self.first:g}/s, "
                f"{self.last:g}/s and {self.duration:g} s"
            )


class Linear(_Ramp):
    """A rate that changes linearly; see `Curve`."""

    __slots__ = ()

    @property
    def total(self) -> float:
        return (self.first + self.last) / 2 * self.duration

    def instant(self, number: float) -> float:
        """Return the root of ``first t + (last - first) t² / 2 duration = number``."""
        slope = (self.last - self.first) / self.duration
        # This form avoids cancellation where the slope is small or negative.
        root = math.sqrt(max(0.0, self.first**2 + 2 * slope * number))
        return min(self.duration, 2 * number / (self.first + root))


class Exponential(_Ramp):
    """A rate that changes by a constant factor per second; see `Curve`."""

    __slots__ = ()

    @property
    def _growth(self) -> float:
        return math.log(self.last / self.first) / self.duration

    @property
    def total(self) -> float:
        growth = self._growth
        if abs(growth * self.duration) < _CONSTANT_BELOW:
            return self.first * self.duration
        return self.first / growth * math.expm1(growth * self.duration)

    def instant(self, number: float) -> float:
        """Return the root of ``first (e^(growth t) - 1) / growth = number``."""
        growth = self._growth
        if abs(growth * self.duration) < _CONSTANT_BELOW:
            return min(self.duration, number / self.first)
        # Rounding may move a falling rate's last number outside the logarithm's domain.
        inside = max(-1.0 + 1e-300, growth * number / self.first)
        return min(self.duration, math.log1p(inside) / growth)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded rate; see `Curve`.

    Attributes:
        rates: requests per second for each second.
    """

    rates: Sequence[float]
    _sums: list[float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.rates or not all(0 <= rate <= MAX_RATE for rate in self.rates):
            raise InvalidInput(
                f"a recorded trace needs a rate from 0 to {MAX_RATE:,.0f} for each second"
            )
        object.__setattr__(self, "_sums", list(accumulate(self.rates)))

    @property
    def duration(self) -> float:
        return float(len(self.rates))

    @property
    def total(self) -> float:
        return self._sums[-1]

    def instant(self, number: float) -> float:
        """Return the instant, interpolated within its second."""
        second = bisect_right(self._sums, number)
        if second == len(self._sums):
            return self.duration
        before = self._sums[second - 1] if second else 0.0
        return min(second + 1.0, second + (number - before) / self.rates[second])


def constant(rate: float, duration: float) -> Curve:
    return Linear(rate, rate, duration)


def arrivals(curve: Curve, seed: int | None = None) -> Iterator[float]:
    """Yield the send times of requests, ascending, in seconds from the start.

    Args:
        seed: seed of random gaps (independent users); None for even gaps.
    """
    if curve.total > MAX_REQUESTS:
        raise InvalidInput(
            f"the trace has {curve.total:,.0f} requests, more than the limit of {MAX_REQUESTS:,}; "
            "lower its rate or its duration"
        )
    return _even(curve) if seed is None else _poisson(curve, random.Random(seed))


def _even(curve: Curve) -> Iterator[float]:
    for number in range(math.ceil(curve.total)):
        yield curve.instant(number)


def _poisson(curve: Curve, generator: random.Random) -> Iterator[float]:
    number = generator.expovariate(1.0)
    while number < curve.total:
        yield curve.instant(number)
        number += generator.expovariate(1.0)


def read_rates(path: Path) -> list[float]:
    """Read per-second rates from a CSV file.

    Each line is a second with the rate in its last column; a header line is optional.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} is not a CSV file: {error}") from None
    rates = []
    for number, row in enumerate(rows):
        try:
            rates.append(float(row[-1]))
        except ValueError:
            names_columns = all(cell.strip()[:1].isalpha() for cell in row)
            if number or not names_columns:
                raise InvalidInput(
                    f"{path}: {row[-1]!r} in line {number + 1} is not a rate"
                ) from None
    return rates
