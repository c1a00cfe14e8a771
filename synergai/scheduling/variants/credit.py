"""Mixing of variants, so that queries cost their allowance on average."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ROUNDING: Final = 1e-9
SHARED: Final = 0.3
"""Most credit of an engine that shares workers with others, in costs of its slowest variant.

A query that uses up more is long, and those of the others wait for it.
"""


class Credit:
    """Chooses variants whose mean cost is an allowance that lies between two of them.

    What a query leaves of its allowance is spent on a slower variant now and then. A query that has
    to use a slower variant than its allowance pays for leaves a debt, which later ones pay back.
    """

    def __init__(self) -> None:
        self._balance = 0.0

    def choose(
        self,
        costs: Sequence[float],
        allowance: float,
        in_time: Callable[[int], int] | None = None,
        most: float = 1.0,
    ) -> int:
        """Return the number of the variant for the next query, by ascending costs.

        `in_time` returns the slowest variant, up to a given one, that this very query may use.
        `most` is the credit that is kept for later, in costs of the slowest variant.
        """
        balance = self._balance
        means = allowance + balance if balance < 0.0 else allowance
        at = bisect_right(costs, means + _ROUNDING) - 1
        if at < 0:
            at = 0
        if balance > 0.0 and at + 1 < len(costs) and allowance + balance >= costs[at + 1]:
            at += 1
        if at and in_time is not None:
            at = in_time(at)
        slowest = costs[-1]
        balance += min(slowest, allowance) - costs[at]
        self._balance = min(max(balance, -slowest), most * slowest)
        return at
