"""Comparison of two workers' answers to one query.

Other kernels, thread counts and instruction sets change the last digits of floating-point results,
and may move a quantised one by a step. Everything else has to be equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.protocol.arrays import read_outputs

if TYPE_CHECKING:
    from synergai.protocol.arrays import Array

QUANTISED: Final = frozenset({"INT8", "UINT8"})
QUANTISED_STEPS: Final = 2
"""Steps by which an element of a quantised tensor may differ."""
SCALED: Final = 0.01
"""Share of the relative tolerance that holds relative to the largest element of the tensor: small
elements are differences of large ones."""
ROUNDINGS: Final = 16
"""Least tolerance in units of the datatype's precision; matters for 16-bit floats only."""
_PRECISION: Final = {"FP16": 2.0**-10, "BF16": 2.0**-7, "FP32": 2.0**-23, "FP64": 2.0**-52}


def difference(one: bytes, other: bytes, tolerance: float) -> str:
    """Return how two serialised ``ModelInferResponse`` differ; empty if they agree.

    Only outputs are compared. A response that cannot be read agrees with none.

    Args:
        one: a response.
        other: another one.
        tolerance: relative tolerance of floating-point elements.
    """
    if one == other:
        return ""
    try:
        first, second = ModelInferResponse.FromString(one), ModelInferResponse.FromString(other)
    except DecodeError:
        return "a response cannot be read"
    described = [
        [(output.name, output.datatype, tuple(output.shape)) for output in response.outputs]
        for response in (first, second)
    ]
    if described[0] != described[1]:
        return "names, datatypes or shapes of the outputs differ"
    try:
        arrays, others = read_outputs(first), read_outputs(second)
    except InvalidInput:
        return "a response cannot be read"
    for name, datatype, _ in described[0]:
        differing = _differing(arrays[name], others[name], datatype, tolerance)
        if differing:
            return f"{differing:,} of {arrays[name].size:,} elements of output {name!r} differ"
    return ""


def _differing(one: Array, other: Array, datatype: str, tolerance: float) -> int:
    """Return how many elements of two arrays of the same shape differ."""
    if datatype in QUANTISED:
        return int(np.count_nonzero(abs(one.astype(np.int16) - other) > QUANTISED_STEPS))
    if datatype not in _PRECISION:
        return int(np.count_nonzero(one != other))
    relative = max(tolerance, ROUNDINGS * _PRECISION[datatype])
    a, b = _doubles(one, datatype), _doubles(other, datatype)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = np.maximum(abs(a), abs(b))
        finite = sizes[np.isfinite(sizes)]
        largest = float(finite.max()) if finite.size else 0.0
        close = np.isfinite(sizes) & (abs(a - b) <= relative * (sizes + SCALED * largest))
    return int(np.count_nonzero(~(same | close)))


def _doubles(array: Array, datatype: str) -> Array:
    if datatype == "BF16":  # bit patterns: the upper half of those of FP32
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)
