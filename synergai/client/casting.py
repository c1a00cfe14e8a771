"""Conversion of values to the arrays that an engine takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from synergai.errors import InvalidInput
from synergai.wire.arrays import DTYPES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from synergai.domain import Engine, TensorSpec

    Array = NDArray[Any]

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def cast_inputs(inputs: Mapping[str, ArrayLike] | ArrayLike, engine: Engine) -> dict[str, Array]:
    """Convert values to the dtypes of the engine's inputs; arrays that have them are not copied.

    Bytes are passed on as encoded images if the engine decodes them. Otherwise see `cast_value`.
    """
    specs = {spec.name: spec for spec in engine.inputs}
    if not (isinstance(inputs, Mapping) and inputs):
        raise InvalidInput(
            f"engine {engine.name!r} has the inputs {', '.join(specs)}: pass a mapping of arrays "
            "by these names"
        )
    arrays: dict[str, Array] = {}
    for name, value in inputs.items():
        spec = specs.get(name)
        if spec is None:
            raise InvalidInput(
                f"engine {engine.name!r} has no input {name!r}; its inputs are {', '.join(specs)}"
            )
        try:
            if engine.preprocess and _is_encoded(value):
                arrays[name] = np.atleast_1d(_texts(value))
            else:
                arrays[name] = cast_value(value, spec)
        except InvalidInput as error:
            raise InvalidInput(f"input {name!r}: {error}") from None
    return arrays


def cast_value(value: ArrayLike, spec: TensorSpec) -> Array:
    """Convert a value, which may be an array of another dtype, to an input of an engine.

    A value with one dimension less than the input gains a leading batch dimension of 1; a scalar
    becomes a single element. ``BF16`` inputs are arrays of bfloat16 or of its bit patterns.
    """
    if value is None:
        raise InvalidInput("it has no value")
    if spec.datatype == "BF16" and isinstance(value, np.ndarray) and _is_bfloat16(value.dtype):
        return _with_batch(value.view(DTYPES["BF16"]), spec)
    if isinstance(value, np.ndarray) and value.dtype == DTYPES[spec.datatype]:
        return _with_batch(value, spec)
    return _with_batch(_cast(value, spec.datatype), spec)


def _is_bfloat16(dtype: np.dtype[Any]) -> bool:
    return dtype == DTYPES["BF16"] or dtype.name == "bfloat16"


def _cast(value: ArrayLike, datatype: str) -> Array:
    if datatype == "BYTES":
        return _texts(value)
    dtype = DTYPES[datatype]
    try:
        array = np.asarray(value)
    except ValueError:
        raise InvalidInput("its rows have different lengths") from None
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{datatype} takes numbers, not {_example(value, array)}")
    if datatype == "BF16":
        raise InvalidInput("BF16 inputs must be arrays of bfloat16; others cannot be converted")
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    wrong = _changed(array, cast)
    if wrong.any():
        element = array[wrong].flat[0] if array.ndim else array[()]
        raise InvalidInput(f"{element} cannot be represented as {datatype}")
    return cast


def _changed(array: Array, cast: Array) -> NDArray[np.bool_]:
    """Return which elements a conversion changed by more than rounding."""
    if cast.dtype.kind == "f" and array.dtype.kind == "f":
        return np.asarray(np.isfinite(array) & ~np.isfinite(cast))
    if cast.dtype.kind == "b" and array.dtype.kind != "b":
        return np.ones(array.shape, np.bool_)
    with np.errstate(all="ignore"):
        back = cast.astype(array.dtype)
    changed = np.asarray(back != array)
    if cast.dtype.kind in "iu" and array.dtype.kind in "iu":
        # Between signed and unsigned, a round trip hides a changed sign.
        changed |= (cast < 0) != (array < 0)
    return changed


def _is_encoded(value: ArrayLike) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "OS"
    return isinstance(value, bytes) or (
        isinstance(value, list | tuple) and all(isinstance(element, bytes) for element in value)
    )


def _texts(value: ArrayLike) -> Array:
    array: Array = np.asarray(value, object)
    for element in array.flat:
        if not isinstance(element, bytes | str):
            raise InvalidInput(f"BYTES takes texts or bytes, not {element!r}")
        if isinstance(element, str) and _SURROGATE.search(element):
            raise InvalidInput(
                f"a text has half of a surrogate pair, which UTF-8 lacks: {element[:40]!r}"
            )
    return array


def _with_batch(array: Array, spec: TensorSpec) -> Array:
    shape = spec.shape
    if array.ndim == 0 and all(size in (-1, 1) for size in shape):
        return array.reshape((1,) * len(shape))
    if array.ndim and array.ndim == len(shape) - 1 and shape[0] in (-1, 1):
        return array[np.newaxis]
    return array


def _example(value: ArrayLike, array: Array) -> str:
    """Return the first element that is not a number; NumPy turns all into texts if one is."""
    for element in np.asarray(value, object).flat:
        if not isinstance(element, int | float | np.number | np.bool_):
            return repr(element)
    return f"elements of {array.dtype}"
