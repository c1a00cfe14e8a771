"""Chains: an engine as a row of segments between its cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from synergai.domain import EngineName


class Chain(Struct, frozen=True, kw_only=True):
    """An engine and its cuts.

    The places of a chain are its inputs, its cuts in the order of the data flow, and its outputs,
    numbered from 0. A stage is the part between two places.

    Attributes:
        sizes: bytes of the tensors of one query, by place.
        weights_before: bytes of the weights that the part before each place needs.
        weights_after: bytes of the weights that the part behind it needs.

    Raises:
        InvalidInput: the rows differ in length, or have fewer than two places.
    """

    engine: EngineName
    sizes: tuple[int, ...]
    weights_before: tuple[int, ...]
    weights_after: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.sizes) == len(self.weights_before) == len(self.weights_after):
            raise InvalidInput(f"the chain of {self.engine} is not one row of places")

    @property
    def end(self) -> int:
        """Number of the last place, the outputs."""
        return len(self.sizes) - 1

    def weights(self, first: int, last: int) -> int:
        """Return the bytes of the weights of the stage between two places."""
        # What is needed both before its end and behind its begin.
        return self.weights_before[last] + self.weights_after[first] - self.weights_before[-1]
