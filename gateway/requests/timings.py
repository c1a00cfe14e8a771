"""Where the time of one request went, told in its response's parameters.

The worker has told already what it did inside the engine host; this adds what only the gateway
knows. Queue, transfer and computing add up to the time that the gateway had the request.
Serialised messages may be continued by further fields, so a response is not parsed for this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.oip.inference_pb2 import InferParameter, ModelInferResponse

if TYPE_CHECKING:
    from synergai.domain import Configuration, WorkerId


def serialised_timings(
    *,
    queue_s: float,
    transfer_s: float,
    estimated_s: float,
    worker: WorkerId,
    configuration: Configuration,
) -> bytes:
    """What follows a serialised ``ModelInferResponse`` to give it these parameters.

    Args:
        queue_s: from the request's arrival until it was given to the worker that answered it;
            what earlier workers failed at included.
        transfer_s: from there to its result, without computing: the way there and back, the
            wait behind other work on the worker, loading its engine, pre- and post-processing.
        estimated_s: what the scheduler had expected from dispatch to result; 0 if nothing.
        worker: who answered it.
        configuration: how the engine was run.
    """
    response = ModelInferResponse(
        parameters={
            "synergai_queue_us": _us(queue_s),
            "synergai_transfer_us": _us(transfer_s),
            "synergai_estimated_us": _us(estimated_s),
            "synergai_worker": InferParameter(string_param=worker),
            "synergai_configuration": InferParameter(string_param=str(configuration)),
        }
    )
    return response.SerializeToString()


def _us(seconds: float) -> InferParameter:
    return InferParameter(int64_param=round(seconds * 1e6))
