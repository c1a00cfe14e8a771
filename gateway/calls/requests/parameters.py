"""Parameters of requests and responses, the protocol's and SynergAI's extensions."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from gateway.entry.access.caller import Caller, Role
from synergai.domain import Configuration, JobId, WorkerId, validate_accuracy
from synergai.errors import InvalidInput, NotSupported
from synergai.jobs import MAX_PRIORITY
from synergai.oip.inference_pb2 import InferParameter, ModelInferResponse
from synergai.wire.parameters import WINDOW_METADATA, checked_tenant, read_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.monitoring.tracing import Trace
    from synergai.wire.request_codec import RequestHeader
    from synergai.wire.rpc import RawRequest

STREAM_WINDOW: Final = 64
"""Default of a stream's window: requests in flight beyond which the stream is not read, so that
flow control slows the client down."""
MAX_WINDOW: Final = 16_384
"""Largest window a client can ask for. It exceeds a gateway's default request limit, so that a
client with a wide window sees rejections instead of flow control."""
_MAX_NUMBER_CHARS: Final = 32
_WINDOW: Final = re.compile("[1-9][0-9]{0,18}")


class RequestOptions(Struct, frozen=True, kw_only=True):
    """Options that a request's parameters set.

    Attributes:
        priority: 0 (default) to 9 (most urgent).
    """

    priority: int = 0
    timeout_s: float | None = None
    tenant: str = ""
    timings: bool = False
    min_accuracy: float = 0.0

    def shorter_budget_s(self, budget_s: float | None) -> float | None:
        """Return the shorter one of the budget of a call and the timeout of its request."""
        if self.timeout_s is None or (budget_s is not None and budget_s <= self.timeout_s):
            return budget_s
        return self.timeout_s


DEFAULT_OPTIONS: Final = RequestOptions()
"""Options of a request without parameters."""


def parse_options(parameters: Mapping[str, InferParameter]) -> RequestOptions:
    """Parse the parameters meant for the gateway; ignore others, which may be for the worker.

    In the protocol, priority 1 is the highest and 0 means default; ours range from 0, the default,
    to 9, the highest. 1 to 9 therefore map to 9 to 1, and lower priorities to the default.
    """
    # 0 and "" stand for no sequence.
    if "sequence_id" in parameters and read_parameters(parameters).get("sequence_id"):
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


def window_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> int:
    for key, value in metadata:
        if key == WINDOW_METADATA:
            if _WINDOW.fullmatch(str(value)) is None:
                raise InvalidInput(f"metadata {key!r} must be a positive integer, not {value!r}")
            return min(int(value), MAX_WINDOW)
    return STREAM_WINDOW


def bool_parameter(parameter: InferParameter, name: str) -> bool:
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidInput(f"the parameter {name!r} must be a boolean")
    return parameter.bool_param


def int_parameter(parameter: InferParameter, name: str) -> int:
    match parameter.WhichOneof("parameter_choice"):
        case "int64_param":
            number = parameter.int64_param
        case "uint64_param":
            number = parameter.uint64_param
        case _:
            raise InvalidInput(f"the parameter {name!r} must be an integer")
    if number < 0:
        raise InvalidInput(f"the parameter {name!r} must be 0 or more, not {number}")
    return number


def float_parameter(parameter: InferParameter, name: str) -> float:
    """Return the value of a numeric parameter, maybe a text: tritonclient sends no floats."""
    match parameter.WhichOneof("parameter_choice"):
        case "double_param":
            return parameter.double_param
        case "int64_param":
            return float(parameter.int64_param)
        case "uint64_param":
            return float(parameter.uint64_param)
        case "string_param" if len(parameter.string_param) <= _MAX_NUMBER_CHARS:
            with suppress(ValueError):
                return float(parameter.string_param)
        case _:
            pass
    raise InvalidInput(f"the parameter {name!r} must be a number, or a text such as '0.9'")


class RequestId(Struct, frozen=True):
    """The id of a request's job, the id that its client chose, and its trace, if it is sampled."""

    job: JobId
    client: str = ""
    trace: Trace | None = None


class InferenceCall(Struct, frozen=True):
    """A call of a client.

    Attributes:
        tenant: that of the request if its parameters name none.
    """

    caller: Caller
    raw: RawRequest[RequestHeader]
    budget_s: float | None
    tenant: str
    request_id: RequestId

    def resolved(self) -> tuple[InferenceCall, RequestOptions]:
        """Return the call with the tenant and the budget that its parameters name, and these."""
        message = self.raw.parsed.message
        options = parse_options(message.parameters)
        tenant = self.caller.tenant_of(
            options.tenant or self.tenant, Role.INFER, engine=message.model_name
        )
        budget_s = options.shorter_budget_s(self.budget_s)
        return replace(self, budget_s=budget_s, tenant=tenant), options


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
