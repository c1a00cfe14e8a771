"""Durations as text, such as ``90``, ``2h`` or ``1h30m``."""

from __future__ import annotations

import re
from typing import Final

from synergai.errors import InvalidInput

_SECONDS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_DURATION: Final = re.compile(
    r"(?:([0-9.]+)d)?(?:([0-9.]+)h)?(?:([0-9.]+)m(?:in)?)?(?:([0-9.]+)s)?(?:([0-9.]+)ms)?"
)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration; without a unit, it is in seconds. It may be negative."""
    bare = text.strip().lower()
    try:
        match = _DURATION.fullmatch(bare)
        if match is not None and bare:
            parts = zip(match.groups(), _SECONDS.values(), strict=True)
            return sum(float(part) * unit for part, unit in parts if part)
        return float(bare)
    except ValueError:
        raise InvalidInput(
            f"{text!r} is not a duration: write seconds, or one such as 250ms, 90s, 30m or 1h30m"
        ) from None
