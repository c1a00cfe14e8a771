"""Which queries are computed together, and how their tensors are put together and taken apart.

A batch is a run of queries that wait one behind the other, with the same tensors but for the
first axis. Nobody waits for it to become larger, and it is never made so large that a query in
it, which would have been in time alone, would come too late.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from synergai.errors import EngineUnusable
from synergai.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from synergai.domain import BatchTimes, Engine

    Array: TypeAlias = NDArray[Any]
    BatchKey: TypeAlias = tuple[
        tuple[str, ...], frozenset[tuple[str, np.dtype[Any], tuple[int, ...]]]
    ]


def check_batchable(engine: Engine) -> None:
    """Check that a model can take the batches that its definition speaks of.

    Raises:
        EngineUnusable: one of its tensors does not leave its first dimension open.
    """
    if engine.max_batch == 1:
        return
    for spec in (*engine.inputs, *engine.outputs):
        if spec.shape[:1] != (-1,):
            raise EngineUnusable(
                f"engine {engine.name!r} cannot have max_batch = {engine.max_batch}: the first "
                f"dimension of {spec.name!r} is not open; take max_batch out of its engine.toml"
            )


@value()
class Candidate:
    """A query that could be part of a batch.

    Attributes:
        rows: size of its tensors' first axis.
        kind: what all queries of a batch have in common; see `batch_key`.
        due: instant by which it should have been computed; infinite if there is none.
    """

    rows: int
    kind: BatchKey
    due: float


def batch_key(inputs: Mapping[str, Array], outputs: Sequence[str]) -> tuple[int, BatchKey] | None:
    """The rows of a query and what has to be the same for it to share a batch.

    Args:
        inputs: as the model takes them.
        outputs: what is to be computed of them.

    Returns:
        None if its inputs have no first axis, or not of the same size.
    """
    rows = {array.shape[0] if array.ndim else 0 for array in inputs.values()}
    if len(rows) != 1 or 0 in rows:
        return None
    tensors = frozenset((name, array.dtype, array.shape[1:]) for name, array in inputs.items())
    return rows.pop(), (tuple(outputs), tensors)


class BatchBuilder:
    """A batch while it is put together, query by query.

    Args:
        batch_times: how long batches take.
        limit: the most rows, whatever the times are known of.
        now: the instant at which the batch would begin.
    """

    def __init__(self, batch_times: BatchTimes, limit: int, now: float) -> None:
        self._times = batch_times
        self._limit = min(limit, batch_times.max_rows)
        self._now = now
        self._kind: BatchKey | None = None
        self._rows = 0
        self._count = 0
        self._due = math.inf
        self._best = (math.inf, 0)

    @property
    def is_full(self) -> bool:
        """There is no room for another row."""
        return self._rows >= self._limit

    def add(self, query: Candidate) -> bool:
        """Take `query` behind those that are in; False if it cannot be among them."""
        rows = self._rows + query.rows
        if (self._count and query.kind != self._kind) or rows > self._limit:
            return False
        due = query.due
        if self._now + self._times.seconds(query.rows) > due:
            due = math.inf  # it is late even alone, and others need not hurry for it
        due = min(self._due, due)
        seconds = self._times.seconds(rows)
        if self._now + seconds > due:
            return False
        self._kind, self._rows, self._due = query.kind, rows, due
        self._count += 1
        # A larger batch is worth it only if each of its rows takes less time.
        self._best = min(self._best, (seconds / rows, -self._count))
        return True

    @property
    def size(self) -> int:
        """How many of the queries, from the first on, had best be computed together."""
        return -self._best[1]


def concatenate(queries: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The inputs of several queries of one kind as those of one."""
    return {name: _joined([inputs[name] for inputs in queries]) for name in queries[0]}


def _joined(arrays: Sequence[Array]) -> Array:
    first = arrays[0]
    # Into an array of the very same dtype: joining by itself loses what metadata say of bfloat16.
    whole = np.empty((sum(map(len, arrays)), *first.shape[1:]), first.dtype)
    return np.concatenate(arrays, out=whole)


def split_rows(outputs: Sequence[Array], rows: Sequence[int]) -> list[list[Array]]:
    """The outputs of each query of a batch, as views.

    Args:
        outputs: of the batch.
        rows: of each query.

    Raises:
        EngineUnusable: an output does not have a row per row of the inputs, so that nobody knows
            whose is what.
    """
    if any(not array.ndim or len(array) != sum(rows) for array in outputs):
        raise EngineUnusable("an output does not have as many rows as the inputs")
    ends = np.cumsum(rows).tolist()
    return [
        [array[end - count : end] for array in outputs]
        for end, count in zip(ends, rows, strict=True)
    ]
