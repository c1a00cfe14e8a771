"""When requests are sent: a rate over time, and arrivals that follow it. Pure.

A `Curve` is a rate as a function of time, held as what integrates it: ``expected(t)`` is how many
requests should have been sent by `t`, and ``instant(n)`` its inverse. Arrivals are the instants of
the numbers 0, 1, 2, … for even gaps; for random ones, of a Poisson process of rate 1, whose
image under the inverse is a Poisson process of the curve's rate.
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
"""Requests per second that no machine sends one by one."""
_STRAIGHT: Final = 1e-9
"""Relative change of rate below which a curve is taken for a straight line."""


class Curve(Protocol):
    """A rate over time."""

    @property
    def duration(self) -> float:
        """Seconds; no request is sent after it."""

    @property
    def total(self) -> float:
        """Expected number of requests in all."""

    def instant(self, number: float) -> float:
        """Seconds from the beginning until `number` requests are expected; up to `total`."""


@dataclass(frozen=True, slots=True)
class _Ramp:
    """From `first` to `last` requests per second within `duration` seconds.

    Raises:
        InvalidInput: on construction, if a rate or the duration is not positive.
    """

    first: float
    last: float
    duration: float

    def __post_init__(self) -> None:
        if not (self.first > 0 and self.last > 0 and self.duration > 0):
            raise InvalidInput(
                f"rates and duration of a trace must be positive, not {self.first:g}, "
                f"{self.last:g} per second and {self.duration:g} s"
            )


class Linear(_Ramp):
    """A rate that changes steadily; see `Curve`."""

    __slots__ = ()

    @property
    def total(self) -> float:
        """Expected number of requests in all."""
        return (self.first + self.last) / 2 * self.duration

    def instant(self, number: float) -> float:
        """The root of ``first t + (last - first) t² / 2 duration = number``."""
        slope = (self.last - self.first) / self.duration
        # In this form nothing cancels where the slope is small or negative.
        root = math.sqrt(max(0.0, self.first**2 + 2 * slope * number))
        return min(self.duration, 2 * number / (self.first + root))


class Exponential(_Ramp):
    """A rate that grows, or falls, by the same factor each second; see `Curve`."""

    __slots__ = ()

    @property
    def _growth(self) -> float:
        return math.log(self.last / self.first) / self.duration

    @property
    def total(self) -> float:
        """Expected number of requests in all."""
        growth = self._growth
        if abs(growth * self.duration) < _STRAIGHT:
            return self.first * self.duration
        return self.first / growth * math.expm1(growth * self.duration)

    def instant(self, number: float) -> float:
        """The root of ``first (e^(growth t) - 1) / growth = number``."""
        growth = self._growth
        if abs(growth * self.duration) < _STRAIGHT:
            return min(self.duration, number / self.first)
        # Rounding may bring a falling rate's last number to where there is no logarithm.
        inside = max(-1.0 + 1e-300, growth * number / self.first)
        return min(self.duration, math.log1p(inside) / growth)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded rate, one figure for each second.

    Attributes:
        rates: requests per second in each second; 0 is a second without any.

    Raises:
        InvalidInput: on construction, if there are none, or one is negative, no number, or above
            `MAX_RATE`.
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
        """Seconds, as many as there are rates."""
        return float(len(self.rates))

    @property
    def total(self) -> float:
        """Expected number of requests in all."""
        return self._sums[-1]

    def instant(self, number: float) -> float:
        """Within its second, at the share of the second's requests that come before it."""
        second = bisect_right(self._sums, number)
        if second == len(self._sums):
            return self.duration
        before = self._sums[second - 1] if second else 0.0
        return min(second + 1.0, second + (number - before) / self.rates[second])


def constant(rate: float, duration: float) -> Curve:
    """The same rate all the time.

    Raises:
        InvalidInput: the rate or the duration is not positive.
    """
    return Linear(rate, rate, duration)


def arrivals(curve: Curve, seed: int | None = None) -> Iterator[float]:
    """The instants at which requests are sent, in order, in seconds from the beginning.

    Args:
        curve: the rate.
        seed: of random gaps, as between users who know nothing of each other; None for even ones.

    Raises:
        InvalidInput: they would be more than `MAX_REQUESTS`.
    """
    if curve.total > MAX_REQUESTS:
        raise InvalidInput(
            f"the trace has {curve.total:,.0f} requests; at most {MAX_REQUESTS:,} can be sent"
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
    """The per-second rates in a CSV file.

    Each line is a second; its last column is the rate. A first line that is no number is a heading.

    Raises:
        InvalidInput: the file cannot be read, or a line has no rate.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} is no CSV file: {error}") from None
    rates = []
    for number, row in enumerate(rows):
        try:
            rates.append(float(row[-1]))
        except ValueError:
            if number:
                raise InvalidInput(
                    f"{path}: {row[-1]!r} in line {number + 1} is not a rate"
                ) from None
    return rates
