"""Extensions to Triton's streaming call of the Open Inference Protocol.

A client may send many independent queries over one stream. It announces how many it keeps in
flight, and can cancel a single one without ending the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergai.oip.inference_pb2 import ModelInferRequest

CANCEL_PARAMETER: Final = "synergai_cancel"
"""Parameter that, if true, turns a message into the cancellation of the request with its id."""
WINDOW_METADATA: Final = "synergai-window"
"""Metadata key of a stream for the number of requests that its client keeps in flight."""


def cancel_request(request_id: str) -> ModelInferRequest:
    """Return the message that cancels the request with this id."""
    from synergai.oip import inference_pb2

    message = inference_pb2.ModelInferRequest(id=request_id)
    message.parameters[CANCEL_PARAMETER].bool_param = True
    return message


def is_cancel_request(message: ModelInferRequest) -> bool:
    """Return whether `message` cancels a request instead of being one."""
    parameters = message.parameters
    return CANCEL_PARAMETER in parameters and parameters[CANCEL_PARAMETER].bool_param
