"""What a request asks for beside its inference: the protocol's parameters, and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.domain import MAX_PRIORITY, validate_name
from synergai.errors import InvalidInput, NotSupported
from synergai.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from synergai.oip.inference_pb2 import InferParameter

TENANT_METADATA: Final = "synergai-tenant"
"""Header of a call that names the tenant of all requests in it that do not name one."""


@value(kw_only=True)
class Asked:
    """What the parameters of a request ask for.

    Attributes:
        priority: 0 (default) to 9 (first).
        timeout_s: its own bound on the time from here on; None if it sets none.
        tenant: whom it is for; empty if it does not say.
        timings: its response is to say where the time went, see ``gateway.requests.timings``.
    """

    priority: int = 0
    timeout_s: float | None = None
    tenant: str = ""
    timings: bool = False


NOTHING: Final = Asked()
"""Of a request without parameters, as nearly all are."""


def asked_by(parameters: Mapping[str, InferParameter]) -> Asked:
    """What `parameters` ask the gateway for; the others may be the worker's, and are left alone.

    The protocol's priority 1 is the highest and 0 means default; ours grow from 0, the default,
    to 9. 1 to 9 therefore become 9 to 1, and what is lower becomes the default.

    Raises:
        InvalidInput: one has the wrong type or an impossible value.
        NotSupported: it asks for a sequence.
    """
    if "sequence_id" in parameters:
        raise NotSupported("sequences are not supported: engines here keep no state")
    priority, timeout_s, tenant, timings = 0, None, "", False
    for name, parameter in parameters.items():
        match name:
            case "priority":
                asked = _integer(parameter, name)
                priority = MAX_PRIORITY + 1 - asked if 1 <= asked <= MAX_PRIORITY else 0
            case "timeout":
                timeout_s = _integer(parameter, name) / 1e6 or None
            case "synergai_tenant":
                if parameter.WhichOneof("parameter_choice") != "string_param":
                    raise InvalidInput(f"the parameter {name!r} must be a string")
                tenant = tenant_name(parameter.string_param)
            case "synergai_timings":
                timings = flag(parameter, name)
            case _:
                pass
    return Asked(priority=priority, timeout_s=timeout_s, tenant=tenant, timings=timings)


def tenant_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The tenant that a call's metadata name; empty if they name none.

    Raises:
        InvalidInput: the name is not valid.
    """
    for key, content in metadata:
        if key == TENANT_METADATA:
            return tenant_name(str(content))
    return ""


def tenant_name(text: str) -> str:
    """Return `text` if it can name a tenant; empty names the tenant of whoever does not say.

    Raises:
        InvalidInput: it cannot.
    """
    return validate_name(text, "tenant name") if text else ""


def flag(parameter: InferParameter, name: str) -> bool:
    """The value of a parameter that is true or false.

    Raises:
        InvalidInput: it is something else.
    """
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidInput(f"the parameter {name!r} must be true or false")
    return parameter.bool_param


def _integer(parameter: InferParameter, name: str) -> int:
    match parameter.WhichOneof("parameter_choice"):
        case "int64_param":
            number = parameter.int64_param
        case "uint64_param":
            number = parameter.uint64_param
        case _:
            raise InvalidInput(f"the parameter {name!r} must be an integer")
    if number < 0:
        raise InvalidInput(f"the parameter {name!r} must not be negative, but is {number}")
    return number
