"""The numbers that the thesis prints, from ``printed.toml``, and their comparison with others."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EXPERIMENTS: Final = ("DL-FL", "DL-FH", "DH-FL", "DH-FH")
CLOSE: Final = 0.05
"""Relative deviation up to which a number is close to the printed one."""


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """A power mode of Table 5.2.

    Attributes:
        board: worker class: ``agx`` or ``nx``.
        number: the thesis's number.
        name: the board's own name.
        mhz: largest clock of the CPU.
        watts: power budget; None for no limit (MAXN).
    """

    board: str
    number: int
    name: str
    mhz: float
    cores: int
    watts: float | None = None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A printed number.

    Attributes:
        key: identifies the quantity; the reports compute it under the same key.
        source: where it is printed.
        text: the number as printed, whose last digit gives its precision.
    """

    key: str
    source: str
    what: str
    text: str
    unit: str

    @property
    def value(self) -> float:
        return float(self.text)

    @property
    def tolerance(self) -> float:
        """Half a unit of the last printed digit."""
        return 0.5 * 10.0 ** -len(self.text.partition(".")[2])


class PrintedCell(msgspec.Struct, frozen=True, kw_only=True):
    """One run of chapter 7, with its mean waiting time and mean excess."""

    policy: str
    experiment: str
    violations: int
    wait_s: float
    excess_s: float


_DATA: Final[dict[str, Any]] = tomllib.loads(
    files("profiler.reports").joinpath("printed.toml").read_text("utf-8")
)
MODES: Final = msgspec.convert(_DATA["modes"], list[Mode])
CHARACTERISATION: Final = msgspec.convert(_DATA["facts"], list[Fact])
CELLS: Final = {
    (cell.policy, cell.experiment): cell
    for cell in msgspec.convert(_DATA["cells"], list[PrintedCell])
}
P99_OVER_SYNERGAI: Final[dict[str, dict[str, float]]] = _DATA["p99_over_synergai"]
TABLE_7_1: Final[dict[str, list[float]]] = _DATA["qos_s"]


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
