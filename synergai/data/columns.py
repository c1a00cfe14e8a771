"""Matching of columns and arrays with the inputs of an engine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from synergai.errors import InvalidInput
from synergai.wire.validation import shape_matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from synergai.domain import Engine, TensorSpec

    Row = Mapping[str, Any]
    """Values of one input of the job, by the engine's input names."""


def match_columns(available: Iterable[str], engine: Engine) -> dict[str, str]:
    """Return the column of a file for each input of the engine.

    A file may have more columns than the engine inputs; a single column needs no matching name.
    """
    names = list(available)
    wanted = [spec.name for spec in engine.inputs]
    if all(name in names for name in wanted):
        check_unique(names, engine.inputs)
        return {name: name for name in wanted}
    if len(names) == len(wanted) == 1:
        return {wanted[0]: names[0]}
    wide = ""
    if len(wanted) == 1 and -1 not in inner_shape(engine.inputs[0]):
        wide = f", or {math.prod(inner_shape(engine.inputs[0]))} of numbers"
    raise InvalidInput(
        f"it has the columns {', '.join(names) or '(none)'}; engine {engine.name!r} needs "
        f"{', '.join(wanted)}{wide}"
    )


def check_unique(names: Sequence[str], specs: Iterable[TensorSpec]) -> None:
    """Raise `InvalidInput` if several columns are called like one of the inputs."""
    for spec in specs:
        if (count := names.count(spec.name)) > 1:
            raise InvalidInput(f"it has {count} columns {spec.name!r}")


def count_rows(shapes: Mapping[str, tuple[int, ...]], engine: Engine) -> int | None:
    """Return the number of rows of arrays with these shapes; None if they are one input."""
    counts: dict[str, int | None] = {}
    for spec in engine.inputs:
        counts[spec.name] = _rows_of(shapes[spec.name], spec)
    [first, *others] = counts.items()
    for name, count in others:
        if count != first[1]:
            raise InvalidInput(f"its arrays {first[0]} and {name} have different numbers of rows")
    return first[1]


def _rows_of(shape: tuple[int, ...], spec: TensorSpec) -> int | None:
    """Return the number of inputs along the first dimension; None if the array is one input."""
    batched = spec.shape[:1] in {(-1,), (1,)}
    # One input may lack the leading dimension of 1.
    wanted = (spec.shape, spec.shape[1:]) if batched else (spec.shape,)
    if shape and any(shape_matches(shape[1:], each) for each in wanted):
        return shape[0]
    if shape_matches(shape, wanted[-1]):
        return None
    raise InvalidInput(
        f"an array of shape {list(shape)} does not suit input {spec.name!r} of shape "
        f"{list(spec.shape)}, neither as a whole nor in rows"
    )


def iterate_rows(arrays: Mapping[str, NDArray[Any]], start: int) -> Iterator[Row]:
    """Yield the rows of arrays in memory, from `start` on."""
    names = list(arrays)
    for values in zip(*(array[start:] for array in arrays.values()), strict=True):
        yield dict(zip(names, values, strict=True))


def as_array(values: Sequence[Any], spec: TensorSpec) -> Any:
    """Return the elements of an input as an array, in its shape if they are as many.

    Whole numbers keep their digits beside fractions, which would turn all into floats, and texts
    the zeros at their end.
    """
    if is_integer(spec):
        values = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
    return in_shape(np.asarray(values, object if spec.datatype == "BYTES" else None), spec)


def is_integer(spec: TensorSpec) -> bool:
    """Return whether an input takes whole numbers only."""
    return spec.datatype.startswith(("INT", "UINT"))


def inner_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape of one input, without the dimension of a batch."""
    return spec.shape[1:] if spec.shape[:1] in {(-1,), (1,)} else spec.shape


def in_shape(array: Any, spec: TensorSpec) -> Any:
    """Return a flat list in the input's shape, if all but its first dimension are known."""
    inner = inner_shape(spec)
    if array.ndim == 1 and len(inner) > 1 and array.size == math.prod(inner):
        return array.reshape(inner)
    return array
