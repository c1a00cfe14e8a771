"""Timings of one request as response parameters.

The worker adds the time spent in its engine host; the gateway appends the rest. Queue, transfer
and compute time add up to the request's time in the gateway. Serialised messages may be extended
by appending fields, so the response is not parsed.
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
    """Return bytes to append to a serialised ``ModelInferResponse`` to add the timings.

    Failed attempts count as queue. Transfer is from the last dispatch to the result, less compute
    time: network, queue on the worker, engine load, pre- and postprocessing.
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
