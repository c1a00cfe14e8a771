"""Dynamic batching: selection of queries, joining of inputs, splitting of outputs.

A batch is a run of consecutive waiting queries whose tensors agree except for the first axis. It is
never delayed to grow, and never grows so large that a query that alone would meet its deadline
misses it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

from synergai.domain import UNKNOWN_RANK, BatchTimes, Engine
from synergai.errors import EngineUnusable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from worker_agent.backends import Array

GROW_AFTER: Final = 32
"""Successful batches after which larger ones are tried again."""

BatchKey: TypeAlias = tuple[tuple[str, ...], frozenset[tuple[str, np.dtype[Any], tuple[int, ...]]]]


def check_batchable(engine: Engine) -> None:
    """Check that the model accepts batches if the engine definition allows them."""
    if engine.max_batch == 1:
        return
    for spec in (*engine.inputs, *engine.outputs):
        if spec.shape[:1] not in {(-1,), UNKNOWN_RANK}:
            raise EngineUnusable(
                f"engine {engine.name!r} cannot have max_batch = {engine.max_batch}: the first "
                f"dimension of {spec.name!r} is fixed; remove max_batch from its engine.toml"
            )


class BatchCandidate(Struct, frozen=True):
    """A query considered for a batch; `rows` is the size of its tensors' first axis."""

    rows: int
    key: BatchKey
    due: float


def batch_key(inputs: Mapping[str, Array], outputs: Sequence[str]) -> tuple[int, BatchKey] | None:
    """Return the number of rows of a query and its key, equal for queries that can share a batch.

    None if the inputs have no common size of the first axis.
    """
    rows = {array.shape[0] if array.ndim else 0 for array in inputs.values()}
    if len(rows) != 1 or 0 in rows:
        return None
    tensors = frozenset((name, array.dtype, array.shape[1:]) for name, array in inputs.items())
    return rows.pop(), (tuple(outputs), tensors)


class BatchBuilder:
    """Builds a batch query by query and finds its best size."""

    def __init__(self, batch_times: BatchTimes, limit: int, now: float) -> None:
        self._times = batch_times
        self._limit = min(limit, batch_times.max_rows)
        self._now = now
        self._key: BatchKey | None = None
        self._rows = 0
        self._count = 0
        self._due = math.inf
        self._best = (math.inf, 0)

    @property
    def is_full(self) -> bool:
        return self._rows >= self._limit

    def add(self, query: BatchCandidate) -> bool:
        """Append `query`; return False, leaving the batch unchanged, if it cannot join."""
        rows = self._rows + query.rows
        if (self._count and query.key != self._key) or rows > self._limit:
            return False
        due = query.due
        if self._now + self._times.seconds(query.rows) > due:
            due = math.inf  # it would be late even alone, so it does not limit the batch
        due = min(self._due, due)
        seconds = self._times.seconds(rows)
        if self._now + seconds > due:
            return False
        self._key, self._rows, self._due = query.key, rows, due
        self._count += 1
        # A larger batch pays off only if it takes less time per row.
        self._best = min(self._best, (seconds / rows, -self._count))
        return True

    @property
    def size(self) -> int:
        """Number of queries, from the first, in the batch with the least time per row."""
        return -self._best[1]


class BatchLimit:
    """Largest batch that a model computes now: a failure halves it, successes double it again."""

    def __init__(self, most: int) -> None:
        self.rows = most
        self._most = most
        self._succeeded = 0

    def succeeded(self) -> None:
        if self.rows == self._most:
            return
        self._succeeded += 1
        if self._succeeded == GROW_AFTER:
            self.rows = min(2 * self.rows, self._most)
            self._succeeded = 0

    def failed(self, rows: int) -> None:
        """Count a batch of more than one row that failed, though its queries may not."""
        self.rows = min(self.rows, rows // 2)
        self._succeeded = 0


class BatchMemory:
    """Memory in which the inputs of batches are joined; it is kept, as fresh pages cost more."""

    def __init__(self) -> None:
        self._kept: dict[str, Array] = {}

    def join(self, queries: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """Join the inputs of queries with the same key along the first axis.

        The result is valid until the next call.
        """
        return {name: self._join(name, [each[name] for each in queries]) for name in queries[0]}

    def _join(self, name: str, arrays: Sequence[Array]) -> Array:
        first, rows = arrays[0], sum(map(len, arrays))
        kept = self._kept.get(name)
        if (
            kept is None
            or len(kept) < rows
            or (kept.dtype, kept.shape[1:]) != (first.dtype, first.shape[1:])
        ):
            # Of the same dtype: np.concatenate drops the metadata that marks bfloat16. Pages that
            # no batch has reached occupy no memory.
            capacity = 1 << (rows - 1).bit_length()
            kept = self._kept[name] = np.empty((capacity, *first.shape[1:]), first.dtype)
        return np.concatenate(arrays, out=kept[:rows])


def split_rows(outputs: Sequence[Array], rows: Sequence[int]) -> list[list[Array]]:
    """Split the outputs of a batch into views of so many rows each."""
    if any(not array.ndim or len(array) != sum(rows) for array in outputs):
        raise EngineUnusable("an output does not have as many rows as the inputs")
    ends = np.cumsum(rows).tolist()
    return [
        [array[end - count : end] for array in outputs]
        for end, count in zip(ends, rows, strict=True)
    ]
