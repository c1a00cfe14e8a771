"""bfloat16 tensors in ONNX Runtime, passed as bit patterns because NumPy has no such dtype."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime as ort

from synergai.wire.arrays import BFLOAT16_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from worker_agent.backends import Array

_ONNX_TYPE: Final = 16
"""``TensorProto.BFLOAT16``; workers need not have the ``onnx`` package."""


def run_with_bfloat16(
    session: Any,
    outputs: Sequence[str],
    inputs: Mapping[str, Array],
    bfloat16: Set[str],
    options: Any,
) -> list[Array]:
    """Compute the named outputs of a model with bfloat16 tensors, given by their bit patterns."""
    values = {
        name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _ONNX_TYPE)
        if name in bfloat16
        else ort.OrtValue.ortvalue_from_numpy(array)
        for name, array in inputs.items()
    }
    return [_array(value) for value in session.run_with_ort_values(list(outputs), values, options)]


def _array(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = value.shape()
    # The runtime exposes such a tensor only by the address of memory that `value` owns.
    data = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape))
    return np.frombuffer(data, BFLOAT16_BITS).reshape(shape)
