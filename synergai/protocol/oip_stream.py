"""What a stream of the Open Inference Protocol has here beyond Triton's.

A client of many independent queries can send all of them over one stream: it says how many it
keeps under way, and calls a single one off without ending the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergai.oip.inference_pb2 import ModelInferRequest

CANCEL_PARAMETER: Final = "synergai_cancel"
"""A message with it, set to true, is no request: it calls off the one that has its id."""
WINDOW_METADATA: Final = "synergai-window"
"""Header of a stream: how many requests its client may have under way."""


def cancel_request(request_id: str) -> ModelInferRequest:
    """The message that calls off the request of this id."""
    from synergai.oip import inference_pb2

    message = inference_pb2.ModelInferRequest(id=request_id)
    message.parameters[CANCEL_PARAMETER].bool_param = True
    return message


def is_cancel_request(message: ModelInferRequest) -> bool:
    """Whether a message calls off another one, instead of being a request itself."""
    parameters = message.parameters
    return CANCEL_PARAMETER in parameters and parameters[CANCEL_PARAMETER].bool_param
