"""Belief about all points of a search, given its measurements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from profiler.measuring.search.process import (
    QPS,
    WATTS,
    SharedProcess,
    expected_log_qps,
    expected_log_watts,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from profiler.measuring.search.space import SearchSpace
    from profiler.measuring.search.trials import TrialResult

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
        """Learn from the result of a measurement."""
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
        """Return the expected result of a point."""
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
