"""Request parameters: those of the protocol, and SynergAI's extensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from synergai.domain import MAX_PRIORITY, validate_accuracy
from synergai.errors import InvalidInput, NotSupported
from synergai.protocol.oip_server.parameters import (
    bool_parameter,
    checked_tenant,
    float_parameter,
    int_parameter,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.oip.inference_pb2 import InferParameter


class RequestOptions(Struct, frozen=True, kw_only=True):
    """Options that a request's parameters set.

    Attributes:
        priority: 0 (default) to 9 (most urgent).
        timeout_s: seconds within which it must complete; None for no limit.
        tenant: its tenant; empty if not given.
        timings: add timings to the response; see ``gateway.requests.timings``.
        min_accuracy: lowest accuracy of the variants that may answer, 0 to 1.
    """

    priority: int = 0
    timeout_s: float | None = None
    tenant: str = ""
    timings: bool = False
    min_accuracy: float = 0.0


DEFAULT_OPTIONS: Final = RequestOptions()
"""Options of a request without parameters."""


def parse_options(parameters: Mapping[str, InferParameter]) -> RequestOptions:
    """Parse the parameters meant for the gateway; ignore others, which may be for the worker.

    In the protocol, priority 1 is the highest and 0 means default; ours range from 0, the default,
    to 9, the highest. 1 to 9 therefore map to 9 to 1, and lower priorities to the default.

    Raises:
        InvalidInput: a parameter has the wrong type or an invalid value.
        NotSupported: the request belongs to a sequence.
    """
    if "sequence_id" in parameters:
        raise NotSupported("sequences are not supported: engines are stateless; drop 'sequence_id'")
    priority, timeout_s, tenant, timings, min_accuracy = 0, None, "", False, 0.0
    for name, parameter in parameters.items():
        match name:
            case "priority":
                level = int_parameter(parameter, name)
                priority = MAX_PRIORITY + 1 - level if 1 <= level <= MAX_PRIORITY else 0
            case "timeout":
                timeout_s = int_parameter(parameter, name) / 1e6 or None
            case "synergai_tenant":
                if parameter.WhichOneof("parameter_choice") != "string_param":
                    raise InvalidInput(f"the parameter {name!r} must be a string")
                tenant = checked_tenant(parameter.string_param)
            case "synergai_timings":
                timings = bool_parameter(parameter, name)
            case "synergai_min_accuracy":
                min_accuracy = validate_accuracy(float_parameter(parameter, name), name)
            case _:
                pass
    return RequestOptions(
        priority=priority,
        timeout_s=timeout_s,
        tenant=tenant,
        timings=timings,
        min_accuracy=min_accuracy,
    )
