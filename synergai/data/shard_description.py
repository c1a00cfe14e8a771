"""Description in a shard: its job, the outputs, and the cursor after its last result.

Fetching therefore continues where the shards of a job end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from synergai.errors import InvalidInput
from synergai.wire.arrays import datatype_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from synergai.data.items import JobResult

VERSION: Final = 1
"""Version of the description; readers refuse later ones."""
_RESERVED: Final = frozenset(("index", "name", "error", "_synergai"))
"""Columns of every shard; an output with one of these names is renamed."""
_COMPANIONS: Final = (".shape", ".length")
"""Ends of the names of columns that complete another one."""


class OutputColumn(msgspec.Struct, frozen=True):
    """Format of an output in a shard.

    Attributes:
        datatype: its datatype in the Open Inference Protocol.
        shape: its shape in every result; None if that differs between results.
    """

    name: str
    column: str
    datatype: str
    shape: tuple[int, ...] | None


class ShardDescription(msgspec.Struct, frozen=True):
    """Description of a shard.

    Attributes:
        cursor: where its results continue after this shard.
        total: number of results in this and all earlier shards.
        outputs: the outputs, in the engine's order.
    """

    job_id: str
    cursor: int
    count: int
    total: int
    outputs: tuple[OutputColumn, ...] = ()
    version: int = VERSION


def describe_outputs(results: Sequence[JobResult]) -> tuple[OutputColumn, ...]:
    """Return how a shard of these results stores their outputs."""
    datatypes: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...] | None] = {}
    for result in results:
        for name, array in result.outputs.items():
            datatype = "BYTES" if array.dtype.hasobject else datatype_of(array.dtype)
            if datatypes.setdefault(name, datatype) != datatype:
                raise InvalidInput(
                    f"output {name!r} is {datatypes[name]} in one result and {datatype} in another"
                )
            if shapes.setdefault(name, array.shape) != array.shape:
                shapes[name] = None
    return tuple(
        OutputColumn(name, _column_name(name, set(datatypes)), datatype, shapes[name])
        for name, datatype in datatypes.items()
    )


def _column_name(output: str, outputs: set[str]) -> str:
    column = output
    while (
        column in _RESERVED
        or column.endswith(_COMPANIONS)
        or (column != output and column in outputs)
    ):
        column += "_"
    return column


def encode_description(description: ShardDescription) -> bytes:
    """Return a description as JSON."""
    return msgspec.json.encode(description)


def decode_description(path: Path, data: bytes) -> ShardDescription:
    """Return the description of a shard from JSON."""
    try:
        description = msgspec.json.decode(data, type=ShardDescription)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} is not a shard of results: {error}") from None
    if description.version > VERSION:
        raise InvalidInput(f"{path} was written by a later version of SynergAI")
    return description


def flat(arrays: Sequence[NDArray[Any] | None]) -> list[NDArray[Any]]:
    """Return the elements of each array that is there, in one dimension."""
    return [np.ascontiguousarray(array).reshape(-1) for array in arrays if array is not None]


def column_of(results: Sequence[JobResult], output: OutputColumn) -> list[NDArray[Any] | None]:
    """Return an output of each result; None for a result without it."""
    return [result.outputs.get(output.name) for result in results]
