"""Inputs and outputs of a TFLite file, as an interpreter of its runtime describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from synergai.domain import UNKNOWN_RANK, TensorSpec
from synergai.errors import EngineUnusable
from synergai.models.formats.model_files import check_signature
from synergai.wire.arrays import datatype_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Details: TypeAlias = dict[str, Any]

_SERVED_KINDS: Final = "biufS"
"""Kinds of NumPy's dtypes that the Open Inference Protocol has datatypes for."""


def tensor_details(interpreter: Any, path: Path, signature: str) -> tuple[Details, Details]:
    """Return what the runtime says of each input and output, by name.

    Args:
        path: the file, for messages.
        signature: the signature to describe, by the names of its tensors; if empty, the first
            graph.
    """
    if signature:
        check_signature(path, interpreter.get_signature_list(), signature)
        runner = interpreter.get_signature_runner(signature)
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        return dict(sorted(inputs.items())), dict(sorted(outputs.items()))
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    return {each["name"]: each for each in inputs}, {each["name"]: each for each in outputs}


def tensor_specs(details: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    return tuple(_spec(name, each) for name, each in details.items())


def _spec(name: str, details: Mapping[str, Any]) -> TensorSpec:
    dtype = np.dtype(details["dtype"])
    # What the runtime gives as an object is a handle; it gives strings as bytes.
    if dtype.kind not in _SERVED_KINDS:
        raise EngineUnusable(f"tensor {name!r} has a type that the Open Inference Protocol lacks")
    # The runtime does not tell a scalar from a tensor of unknown rank, which may be a scalar.
    shape = tuple(details["shape_signature"].tolist()) or UNKNOWN_RANK
    return TensorSpec(name, datatype_of(dtype), shape)
