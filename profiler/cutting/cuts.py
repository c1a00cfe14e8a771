"""Cuts of a model: the tensors through which all data flows."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from synergai.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence


class Cut(Struct, frozen=True, kw_only=True):
    """A tensor at which a model can be cut in two.

    Attributes:
        position: its number among the cuts of the model, from 1; 0 stands for the model's inputs.
        datatype: as in the Open Inference Protocol.
        shape: dimensions; -1 marks a dynamic one.
        size_bytes: its size in one query, with dynamic dimensions of 1.
        weights_before: bytes of the weights that the part before it needs.
        weights_after: those that the part behind it needs; both parts may need the same ones.
        work: estimated share of the model's computation before it, 0 to 1.
        seam: whether it is behind an activation or a pool, so that no runtime computes the
            operators on both sides as one.
        exact: whether the two parts are expected to compute the same bits as the whole: at a seam
            that one operator reads. Where branches begin, a runtime may fuse their sum with another
            branch than in the whole, which changes the last bits.
    """

    position: int
    tensor: str
    datatype: str
    shape: tuple[int, ...]
    size_bytes: int
    weights_before: int
    weights_after: int
    work: float
    seam: bool
    exact: bool


def select_cuts(engine: str, cuts: Sequence[Cut], tensors: Sequence[str]) -> tuple[Cut, ...]:
    """Return the cuts at the named tensors, which must be in the order of the data flow."""
    by_name = {cut.tensor: cut for cut in cuts}
    for tensor in tensors:
        if tensor not in by_name:
            raise NotFound(
                f"engine {engine!r} has no cut at {tensor!r}; "
                f"'synergai engines cuts {engine}' lists its cuts"
            )
    chosen = tuple(by_name[tensor] for tensor in tensors)
    for before, behind in pairwise(chosen):
        if before.position >= behind.position:
            raise InvalidInput(
                f"the cut {behind.tensor!r} is not behind {before.tensor!r}: name each cut once, "
                "in the order of the data flow"
            )
    return chosen
