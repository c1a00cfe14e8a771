"""Numbers and lists as the prose of the reports writes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

UNKNOWN: Final = "\N{EN DASH}"
"""Placeholder for an unknown value."""
TIMES: Final = "\N{MULTIPLICATION SIGN}"
MINUS: Final = "\N{MINUS SIGN}"
_MINUTES_FROM_S: Final = 120.0
_HOURS_FROM_S: Final = 7200.0
_MOST_SHOWN: Final = 24
"""Longest name in a figure, in characters."""


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with significant digits and without exponent: 0.042, 16.5, 2,630."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def duration(seconds: float | None) -> str:
    """Return a time in the unit in which it is read easily: 3.2 ms, 27.8 s, 4.3 min, 2.5 h."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if 0 < abs(seconds) < 0.1:
        return f"{number(seconds * 1e3)} ms"
    if abs(seconds) < _MINUTES_FROM_S:
        return f"{number(seconds)} s"
    if abs(seconds) < _HOURS_FROM_S:
        return f"{number(seconds / 60)} min"
    return f"{number(seconds / 3600)} h"


def factor(value: float | None) -> str:
    """Return a ratio with its multiplication sign, as in 2.8 times."""
    if value is None:
        return UNKNOWN
    return f"{number(value, 3 if value < 1.2 or value >= 10 else 2)}{TIMES}"


def correlation(value: float | None) -> str:
    """Return a correlation coefficient with two decimals."""
    return UNKNOWN if value is None else f"{value:.2f}".replace("-", MINUS)


def percent(value: float, decimals: int = 0) -> str:
    """Return a signed change, as in +12 %."""
    rounded = round(value * 100, decimals) + 0.0  # no negative zero
    sign = "+" if rounded > 0 else ""
    return f"{sign}{rounded:.{decimals}f} %".replace("-", MINUS)


def share(value: float | None) -> str:
    """Return a part of a whole: 34 %."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def listing(items: Iterable[str], most: int = 8) -> str:
    """Join words: ``a``, ``a and b``, ``a, b and c``; beyond `most`, ``a, b and 7 more``."""
    words = list(items)
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shorten(text: str) -> str:
    """Cut the middle out of a name that is too long for a figure."""
    if len(text) <= _MOST_SHOWN:
        return text
    tail = _MOST_SHOWN // 2
    return f"{text[: _MOST_SHOWN - tail - 1]}…{text[-tail:]}"
