"""Measurements of a search, and their outcomes."""

from __future__ import annotations

from typing import Final, NamedTuple

SHORT_ERROR: Final = 0.024
"""Standard error of the logarithm of the QPS of a short run: 2 % from run to run, and 10 % from
query to query, over 64 queries."""
FULL_ERROR: Final = 0.02


class Trial(NamedTuple):
    """A measurement that a strategy asks for.

    Attributes:
        full: whether it takes the time of an exhaustive profile, rather than the least.
    """

    point: int
    full: bool = False


class TrialResult(NamedTuple):
    """Outcome of a measurement.

    Attributes:
        watts: power of the machine; 0 if it cannot be measured.
        seconds: duration of everything, the switch of the power mode included.
        error: standard error of the logarithm of `qps`.
    """

    qps: float
    watts: float
    setup_s: float
    seconds: float
    error: float = SHORT_ERROR
