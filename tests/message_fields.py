"""Typed keyword arguments of protobuf messages, for helpers that pass them on."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from synergai.oip import inference_pb2 as oip
from synergai.v1 import common_pb2
from synergai.wire.parameters import CANCEL_PARAMETER


class ProgressCounts(TypedDict, total=False):
    """Numeric fields of ``hub_pb2.Progress``, without the assignment's id."""

    done: int
    labelled: int
    correct: int
    compute_s: float
    batch: int


class ProgressFields(ProgressCounts, total=False):
    """All fields of ``hub_pb2.Progress`` but the assignment's id."""

    responses: Sequence[bytes]


class PlacedFields(TypedDict, total=False):
    """Fields of ``common_pb2.Placed``."""

    engine: str
    version: int
    digest: str
    state: common_pb2.PlacedState.ValueType
    received: int
    size: int
    fault: str
    fetched: bool


class RequestFields(TypedDict, total=False):
    """Fields of ``ModelInferRequest``, without its inputs."""

    model_name: str
    model_version: str
    id: str
    parameters: Mapping[str, oip.InferParameter]
    outputs: Sequence[oip.ModelInferRequest.InferRequestedOutputTensor]
    raw_input_contents: Sequence[bytes]


def cancel_request(request_id: str) -> oip.ModelInferRequest:
    """Return the message that cancels a request of a stream."""
    message = oip.ModelInferRequest(id=request_id)
    message.parameters[CANCEL_PARAMETER].bool_param = True
    return message
