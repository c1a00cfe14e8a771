"""Belief about all points of a search, given its measurements."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from profiler.measuring.search.space import Knobs, Point, Row, SearchSpace, TrialResult


# The logarithm of the QPS, or of the power, is a sum of terms: constants of the engine, of the
# device and of both, and curves over the knobs that are common to everything, to a device, to an
# engine or to both. Where the terms of two points agree, a measurement of one says something about
# the other. Nothing is fitted: with some ten measurements per device, the widths below say more
# than their data would. Textbook formulas: Rasmussen and Williams, Gaussian Processes for Machine
# Learning, chapter 2.

_LENGTHS: Final = (1.6, 0.45, 12.0, 0.45)
"""Distances over which curves bend: doublings of the threads, logarithm of the clock, cores, and
logarithm of the memory's clock."""
_LEVEL: Final = 5.0
"""Standard deviation of the level that everything has in common: it is not known."""
_SURPRISE: Final = 2.5
"""Standard deviations beyond which a measurement widens the curve of its row."""
_USUALLY_OFF: Final = 0.7
"""Root mean square of how far measurements are off, in standard deviations, where the widths
below are right: most of what is uncertain is common to many points."""
_MOST_OFF: Final = 3.0
"""Standard deviations that one measurement can be off: one collapse does not discredit the rest."""
_OVERALL_WEIGHT, _ROW_WEIGHT, _NOISE_WEIGHT = 10, 4, 4
"""Measurements that as many of a search, of a row and of repetitions outweigh."""
_NOISIER: Final = 1.2
"""Change of the noise from which on all measurements count with it."""
_SERIAL, _CONTENTION = 0.12, 0.003
_CLOCK_EXPONENT: Final = 0.9
_BASE_W: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWidths:
    """Standard deviations of the terms, of a logarithm.

    Attributes:
        both: constant of an engine on a device.
        curve: curve over the knobs that all have in common.
        row_curve: curve of an engine on a device.
        mode: constant of a power mode of a device.
        full: what computing on all cores changes, of an engine on a device.
        own: what a point has in common with no other.
        wider_curve: by how much a surprise widens the curve of a row.
        wider_mode: by how much a surprise widens the constant of its power mode.
        wider_full: by how much a surprise with all cores widens that term of a row.
    """

    engine: float
    device: float
    both: float
    curve: float
    device_curve: float
    engine_curve: float
    row_curve: float
    mode: float
    full: float
    own: float = 0.03
    wider_curve: float = 0.25
    wider_mode: float = 0.25
    wider_full: float = 0.6


QPS: Final = KernelWidths(
    engine=1.2,
    device=0.8,
    both=0.45,
    curve=0.25,
    device_curve=0.25,
    engine_curve=0.20,
    row_curve=0.12,
    mode=0.10,
    full=0.25,
)
WATTS: Final = KernelWidths(
    engine=0.15,
    device=0.7,
    both=0.10,
    curve=0.15,
    device_curve=0.15,
    engine_curve=0.05,
    row_curve=0.04,
    mode=0.05,
    full=0.0,
    wider_full=0.0,
)


def expected_log_qps(knobs: Knobs) -> float:
    """Return the logarithm of the QPS, up to a constant, of an unknown engine.

    Universal Scalability Law (Gunther 2007) with a serial share of 12 %.
    """
    threads = max(1, knobs.threads)
    slowdown = 1 + _SERIAL * (threads - 1) + _CONTENTION * threads * (threads - 1)
    return float(_CLOCK_EXPONENT * np.log(knobs.clock_mhz) + np.log(threads / slowdown))


def expected_log_watts(knobs: Knobs) -> float:
    """Return the logarithm of the power, up to a constant: a base, and threads * clock * V^2."""
    ghz = knobs.clock_mhz / 1000
    volts = 0.6 + 0.25 * ghz
    return float(np.log(_BASE_W + max(1, knobs.threads) * ghz * volts**2))


class _Observation(NamedTuple):
    point: int
    value: float
    error: float


@dataclass(slots=True)
class _Squares:
    """Sum of squares of how far measurements were off, in standard deviations."""

    total: float = 0.0
    count: int = 0

    def add(self, off: float) -> None:
        self.total += off**2
        self.count += 1

    def mean(self, prior: float, weight: int) -> float:
        return (weight * prior + self.total) / (weight + self.count)


class SharedProcess:
    """Belief about one figure of all points of a space.

    Args:
        expected: expectation of a point without measurements, up to a constant.

    Attributes:
        mean: mean of the logarithm by point; shape (N,).
        covariance: its covariance; shape (N, N). Measured points keep some, as each measurement
            has an error.
    """

    def __init__(
        self, space: SearchSpace, widths: KernelWidths, expected: Callable[[Knobs], float]
    ) -> None:
        points = space.points
        self._widths = widths
        self._prior = np.array([expected(point.knobs) for point in points])
        self._engine = _equal([point.engine for point in points])
        self._device = _equal([point.device for point in points])
        self._row = self._engine * self._device
        self._mode = self._device * _equal([p.configuration.power_mode for p in points])
        self._alike = _matern(np.array([_features(point) for point in points]))
        full = np.array([float(point.knobs.is_full) for point in points])
        self._full = np.outer(full, full)
        self._row_of = [point.row for point in points]
        self._is_full = full > 0
        self._wider: NDArray[np.float64] = np.zeros_like(self._row)
        self._seen: list[_Observation] = []
        self._noise = 1.0
        """Errors of measurements, by those that they state, as far as repetitions show it."""
        self._repeated = _Squares()
        self._off = _Squares()
        self._off_in: defaultdict[Row, _Squares] = defaultdict(_Squares)
        self.mean = self._prior
        self.covariance = self._kernel()

    def observe(self, point: int, value: float, error: float) -> None:
        seen = _Observation(point, value, error)
        off = abs(value - self.mean[point]) / np.sqrt(self._variance(seen))
        changed = self._count(seen, float(off))
        if self._seen and off > _SURPRISE:
            self._widen(point)
            changed = True
        self._seen.append(seen)
        if changed:
            self.mean, self.covariance = self._prior, self._kernel()
            for each in self._seen:
                self._condition(each)
        else:
            self._condition(seen)

    def deviation(self, point: int) -> float:
        """Return the standard deviation of a point's logarithm.

        It is wider where measurements were off by more than was expected, above all in its row.
        """
        usual = _USUALLY_OFF**2
        overall = self._off.mean(usual, _OVERALL_WEIGHT)
        here = self._off_in[self._row_of[point]].mean(overall, _ROW_WEIGHT)
        return float(np.sqrt(max(0.0, self.covariance[point, point]) * max(1.0, here / usual)))

    def error(self, stated: float) -> float:
        return self._noise * stated

    def _count(self, seen: _Observation, off: float) -> bool:
        """Learn how far measurements are off; return whether this changes their noise."""
        if any(each.point == seen.point for each in self._seen):
            self._repeated.add(off * self._noise)
            noise = max(1.0, math.sqrt(self._repeated.mean(1.0, _NOISE_WEIGHT)))
            if not 1 / _NOISIER < noise / self._noise < _NOISIER:
                self._noise = noise
                return True
        elif any(self._row_of[each.point] == self._row_of[seen.point] for each in self._seen):
            off = min(off, _MOST_OFF)
            self._off.add(off)
            self._off_in[self._row_of[seen.point]].add(off)
        return False

    def _variance(self, seen: _Observation) -> float:
        """Return the variance of a measurement about its expectation."""
        return float(self.covariance[seen.point, seen.point]) + self.error(seen.error) ** 2

    def _condition(self, seen: _Observation) -> None:
        column = self.covariance[seen.point]
        gain = column / self._variance(seen)
        self.mean = self.mean + gain * (seen.value - self.mean[seen.point])
        self.covariance = self.covariance - np.outer(gain, column)

    def _widen(self, point: int) -> None:
        """Let the row's own curve, or what all cores change in it, deviate further."""
        row = np.array([each == self._row_of[point] for each in self._row_of])
        if self._is_full[point] and self._widths.wider_full:
            row &= self._is_full
            self._wider += self._widths.wider_full**2 * np.outer(row, row)
        else:
            self._wider += self._widths.wider_curve**2 * np.outer(row, row) * self._alike
            same = self._mode[point]
            self._wider += self._widths.wider_mode**2 * np.outer(same, same)

    def _kernel(self) -> NDArray[np.float64]:
        w = self._widths
        constants = (
            _LEVEL**2
            + w.engine**2 * self._engine
            + w.device**2 * self._device
            + w.both**2 * self._row
            + w.mode**2 * self._mode
        )
        curves = (
            w.curve**2
            + w.device_curve**2 * self._device
            + w.engine_curve**2 * self._engine
            + w.row_curve**2 * self._row
        )
        full = w.full**2 * self._row * self._full
        own = w.own**2 * np.eye(len(self._prior))
        kernel: NDArray[np.float64] = constants + curves * self._alike + full + own + self._wider
        return kernel


def _equal(values: Sequence[object]) -> NDArray[np.float64]:
    """Return a matrix with 1 where two values are equal, else 0."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    codes = np.array([numbers[value] for value in values])
    equal: NDArray[np.float64] = np.equal.outer(codes, codes).astype(np.float64)
    return equal


def _features(point: Point) -> tuple[float, ...]:
    knobs = point.knobs
    values = (
        np.log2(max(1, knobs.threads)),
        np.log(knobs.clock_mhz),
        float(knobs.cores),
        np.log(knobs.memory_mhz) if knobs.memory_mhz else 0.0,
    )
    return tuple(float(value / length) for value, length in zip(values, _LENGTHS, strict=True))


def _matern(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Matérn kernel with smoothness 5/2 of features in units of their lengths."""
    squares = np.sum((features[:, None, :] - features[None, :, :]) ** 2, axis=-1)
    distance = np.sqrt(5.0 * squares)
    kernel: NDArray[np.float64] = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return kernel


_WATTS_ERROR: Final = 0.03
"""Standard error of the logarithm of the power of a short run."""


class Prediction(NamedTuple):
    """Figures of a point that was not measured.

    Attributes:
        error: standard deviation of its logarithm.
        watts: power of the machine; meaningless if that of no point can be measured.
    """

    qps: float
    error: float
    watts: float


class Belief:
    """Gaussian processes of QPS and power, updated with the results of a search.

    Args:
        space: the space of the search, of N points.

    Attributes:
        qps: belief about the logarithm of the QPS.
        watts: belief about the logarithm of the power.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.qps = SharedProcess(space, QPS, expected_log_qps)
        self.watts = SharedProcess(space, WATTS, expected_log_watts)

    def observe(self, point: int, result: TrialResult) -> None:
        self.qps.observe(point, math.log(result.qps), result.error)
        if result.watts > 0:
            self.watts.observe(point, math.log(result.watts), _WATTS_ERROR)

    def mean(self, weight: float) -> NDArray[np.float64]:
        """Return the mean of log(QPS / watts**weight) by point; shape (N,)."""
        return self.qps.mean - weight * self.watts.mean

    def gains(
        self, points: list[int], best: int, weight: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of what points gain over another one.

        Returns:
            Two arrays of shape (P,).
        """
        mean = self.mean(weight)
        variance = self._difference(self.qps, points, best)
        if weight:
            variance = variance + weight**2 * self._difference(self.watts, points, best)
        return mean[points] - mean[best], np.sqrt(np.maximum(0.0, variance))

    def predict(self, point: int) -> Prediction:
        return Prediction(
            qps=float(np.exp(self.qps.mean[point])),
            error=self.qps.deviation(point),
            watts=float(np.exp(self.watts.mean[point])),
        )

    @staticmethod
    def _difference(process: SharedProcess, points: list[int], best: int) -> NDArray[np.float64]:
        covariance = process.covariance
        variance: NDArray[np.float64] = (
            np.diagonal(covariance)[points] + covariance[best, best] - 2 * covariance[points, best]
        )
        return variance
