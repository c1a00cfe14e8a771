"""Conversion between parameters of the Open Inference Protocol and Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.oip import inference_pb2

ParameterValue: TypeAlias = bool | int | float | str


def read_parameters(
    parameters: Mapping[str, inference_pb2.InferParameter],
) -> dict[str, ParameterValue]:
    """Return parameter values by name, without those that have no value."""
    values = {}
    for name, parameter in parameters.items():
        if choice := parameter.WhichOneof("parameter_choice"):
            values[name] = getattr(parameter, choice)
    return values


def set_parameter(parameter: inference_pb2.InferParameter, value: ParameterValue) -> None:
    """Set `parameter` to `value`, in the field of its type."""
    match value:
        case bool():
            parameter.bool_param = value
        case int() if -(2**63) <= value < 2**63:
            parameter.int64_param = value
        case int() if 0 <= value < 2**64:
            parameter.uint64_param = value
        case int():
            raise InvalidInput(f"parameter {value} does not fit into 64 bits")
        case float():
            parameter.double_param = value
        case str():
            parameter.string_param = value
