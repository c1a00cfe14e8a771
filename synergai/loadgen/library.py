"""What is sent: samples of an engine's inputs, and what their answers are worth.

MLPerf calls it the query sample library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How right an engine's answers were.

    Attributes:
        measure: what was measured, such as ``top-1``.
        value: the figure, from 0 to 1.
        samples: how many answers it rests on.
    """

    measure: str
    value: float
    samples: int


class SampleLibrary(Protocol):
    """Samples by index, from 0."""

    @property
    def origin(self) -> str:
        """Where they are from, for people."""

    @property
    def count(self) -> int:
        """How many there are."""

    @property
    def outputs(self) -> Sequence[str]:
        """The outputs to ask for; all if empty."""

    @property
    def performance_count(self) -> int:
        """How many of them are held in memory at a time."""

    def load(self, indices: Sequence[int]) -> None:
        """Have these samples in memory."""

    def unload(self, indices: Sequence[int]) -> None:
        """Have these samples in memory no more."""

    def inputs(self, index: int) -> Mapping[str, Array]:
        """The arrays of a loaded sample, by input name."""

    def answer(self, index: int, outputs: Mapping[str, Array]) -> bytes:
        """What LoadGen's accuracy log is to keep of a sample's outputs."""

    def evaluate(self, log: Path) -> Accuracy | None:
        """How right the answers in an accuracy log are; None if nobody knows.

        Raises:
            InvalidInput: it is not such a log, or not of these samples.
        """
