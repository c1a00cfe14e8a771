"""Comparison of printed numbers with computed ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from profiler.reports.printed import Fact

CLOSE: Final = 0.05
"""Relative deviation up to which a number is close to the printed one."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A printed number and the computed one."""

    fact: Fact
    computed: float

    @property
    def deviation(self) -> float:
        """Computed over printed, minus 1."""
        return self.computed / self.fact.value - 1

    @property
    def verdict(self) -> str:
        """``agrees`` within rounding, ``close`` within 5 %, else ``differs``."""
        if abs(self.computed - self.fact.value) <= self.fact.tolerance * (1 + 1e-9):
            return "agrees"
        return "close" if abs(self.deviation) <= CLOSE else "differs"


def compare(facts: Iterable[Fact], computed: Mapping[str, float]) -> list[Comparison]:
    """Return the comparisons of all printed numbers that were computed, in their order."""
    return [Comparison(fact, computed[fact.key]) for fact in facts if fact.key in computed]
