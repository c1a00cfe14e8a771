"""Request rates over time in the shapes of J. L. Buijnsters's thesis (TU Delft, 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

Shape: TypeAlias = Literal["constant", "linear", "exponential", "twitter"]
Spacing: TypeAlias = Literal["poisson", "even"]
"""Whether requests arrive independently of each other, or each when the last one's gap is over."""
SPACINGS: Final[tuple[Spacing, ...]] = ("poisson", "even")

_STEPS: Final = 10
"""Steps of the shapes that rise."""
_SINES: Final = 8
_SINE_SHARE: Final = 0.15
_VOLATILITY: Final = 0.3
"""Standard deviation of the logarithm of the rate from second to second."""


def draw_arrivals(
    shape: Shape, mean: float, seconds: int, seed: int, spacing: Spacing = "poisson"
) -> list[float]:
    """Return the times at which requests arrive at a rate that changes.

    Args:
        shape: how the rate changes.
        mean: requests per second on average.
        seconds: duration.
        seed: random seed.
        spacing: the thesis's stress testers space requests evenly.
    """
    random = np.random.default_rng(seed)
    rates = _SHAPES[shape](seconds, random)
    rates *= mean / rates.mean()
    if spacing == "even":
        expected = np.concatenate([[0.0], np.cumsum(rates)])
        numbers = np.arange(random.uniform(), expected[-1])
        return [float(each) for each in np.interp(numbers, expected, np.arange(seconds + 1))]
    counts = random.poisson(rates)
    at = np.repeat(np.arange(seconds), counts) + random.uniform(size=int(counts.sum()))
    return [float(each) for each in np.sort(at)]


def _constant(seconds: int, _: np.random.Generator) -> NDArray[np.float64]:
    return np.ones(seconds)


def _linear(seconds: int, _: np.random.Generator) -> NDArray[np.float64]:
    """Rise by equal steps, and fall in the same way."""
    step = np.floor(np.arange(seconds) * 2 * _STEPS / seconds)
    return np.asarray(np.minimum(step, 2 * _STEPS - 1 - step) + 1.0, np.float64)


def _exponential(seconds: int, _: np.random.Generator) -> NDArray[np.float64]:
    """Rise by a factor per step, from a tenth of the last rate."""
    step = np.floor(np.arange(seconds) * _STEPS / seconds)
    return np.asarray(10.0 ** (step / (_STEPS - 1)), np.float64)


def _twitter(seconds: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Vary from second to second, like posts in a message service, and with slow waves."""
    at = np.arange(seconds)
    rate = np.ones(seconds)
    for _ in range(_SINES):
        amplitude = _SINE_SHARE * random.uniform()
        waves, phase = random.uniform(1.0, 12.0), random.uniform(0.0, 2 * np.pi)
        rate += amplitude * np.sin(2 * np.pi * waves * at / seconds + phase)
    volatile = np.exp(_VOLATILITY * random.standard_normal(seconds))
    return np.asarray(np.maximum(rate, 0.1) * volatile, np.float64)


_SHAPES: Final[dict[Shape, Callable[[int, np.random.Generator], NDArray[np.float64]]]] = {
    "constant": _constant,
    "linear": _linear,
    "exponential": _exponential,
    "twitter": _twitter,
}
SHAPES: Final = tuple(_SHAPES)
