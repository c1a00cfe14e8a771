"""Typed access to request parameters and call metadata."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput
from synergai.names import validate_name
from synergai.protocol.oip_stream import WINDOW_METADATA

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.oip.inference_pb2 import InferParameter

TENANT_METADATA: Final = "synergai-tenant"
"""Call metadata with the tenant of all requests in the call that name none themselves."""
STREAM_WINDOW: Final = 64
"""Default of a stream's window: requests in flight beyond which the stream is not read, so that
flow control slows the client down."""
MAX_WINDOW: Final = 16_384
"""Largest window a client can ask for. It exceeds a gateway's default request limit, so that a
client with a wide window sees rejections instead of flow control."""
_MAX_NUMBER_CHARS: Final = 32
_WINDOW: Final = re.compile("[1-9][0-9]{0,18}")


def tenant_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the tenant in a call's metadata; empty if there is none.

    Raises:
        InvalidInput: the name is not valid.
    """
    for key, content in metadata:
        if key == TENANT_METADATA:
            return checked_tenant(str(content))
    return ""


def window_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> int:
    """Return a stream's window from its call metadata.

    Raises:
        InvalidInput: the window is not a positive integer.
    """
    for key, value in metadata:
        if key == WINDOW_METADATA:
            if _WINDOW.fullmatch(str(value)) is None:
                raise InvalidInput(f"metadata {key!r} must be a positive integer, not {value!r}")
            return min(int(value), MAX_WINDOW)
    return STREAM_WINDOW


def checked_tenant(text: str) -> str:
    """Return `text` if it is a valid tenant name; empty is the default tenant.

    Raises:
        InvalidInput: it is not.
    """
    return validate_name(text, "tenant name") if text else ""


def bool_parameter(parameter: InferParameter, name: str) -> bool:
    """Return the value of a boolean parameter.

    Raises:
        InvalidInput: it is not boolean.
    """
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidInput(f"the parameter {name!r} must be a boolean")
    return parameter.bool_param


def int_parameter(parameter: InferParameter, name: str) -> int:
    """Return the value of a nonnegative integer parameter.

    Raises:
        InvalidInput: it is negative or not an integer.
    """
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
    """Return the value of a numeric parameter, which may be a text: tritonclient sends no floats.

    Raises:
        InvalidInput: it is not a number.
    """
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
