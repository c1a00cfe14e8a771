"""Timings of one request as response parameters.

The worker adds the time spent in its engine host; the gateway appends the rest. Queue, transfer
and compute time add up to the request's time in the gateway. Serialised messages may be extended
by appending fields, so the response is not parsed.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from synergai.oip.inference_pb2 import InferParameter, ModelInferResponse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


_TEXTS: Final = ("synergai_worker", "synergai_configuration")


def join_timings(stages: Sequence[Mapping[str, InferParameter]]) -> dict[str, InferParameter]:
    """Return the timings of a request from its stages': sums, and the workers in order."""
    joined: dict[str, InferParameter] = {}
    for name in dict.fromkeys(chain.from_iterable(stages)):
        values = [stage[name] for stage in stages if name in stage]
        if name in _TEXTS:
            text = " ".join(each.string_param for each in values)
            joined[name] = InferParameter(string_param=text)
        elif name.startswith("synergai_") and name.endswith("_us"):
            joined[name] = InferParameter(int64_param=sum(each.int64_param for each in values))
    return joined


def _us(seconds: float) -> InferParameter:
    return InferParameter(int64_param=round(seconds * 1e6))
