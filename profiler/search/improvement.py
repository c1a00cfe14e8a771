"""Expected improvement over the best known point."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TAIL_WEIGHT: Final = 0.06
_TAIL_DEVIATION: Final = 0.35
"""Curves can break in ways that no process expects: a share of the belief is this much wider."""
_erf = np.vectorize(math.erf, otypes=[np.float64])


def expected_improvement(
    gain: NDArray[np.float64], deviation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean of the positive part of a gain, with a heavy tail.

    Args:
        gain: mean of the gain; shape (N,).
        deviation: its standard deviation; shape (N,).

    Returns:
        Shape (N,).
    """
    wide = np.hypot(deviation, _TAIL_DEVIATION)
    return (1 - _TAIL_WEIGHT) * improvement(gain, deviation) + _TAIL_WEIGHT * improvement(
        gain, wide
    )


def improvement(gain: NDArray[np.float64], deviation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the positive part of a gain that is normally distributed.

    Args:
        gain: mean of the gain; shape (N,).
        deviation: its standard deviation; shape (N,).

    Returns:
        Shape (N,); Mockus, Tiesis and Zilinskas 1978.
    """
    sigma = np.maximum(deviation, 1e-9)
    z = gain / sigma
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + _erf(z / math.sqrt(2)))
    mean: NDArray[np.float64] = gain * below + sigma * density
    return mean
