"""Sharing queries among workers that become ready at different times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def water_fill(queries: float, ready: Sequence[tuple[float, int]], rates: Sequence[float]) -> float:
    """Return when workers complete `queries` if they finish together; `ready` is soonest first."""
    total_rate = work = 0.0
    until = math.inf
    for at, worker in ready:
        if at >= until:
            break
        total_rate += rates[worker]
        work += rates[worker] * at
        until = (queries + work) / total_rate
    return until
