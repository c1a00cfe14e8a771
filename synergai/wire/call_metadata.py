"""Metadata of calls: the tenant, and the ids that clients choose for their requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.names import validate_name

if TYPE_CHECKING:
    from collections.abc import Iterable

TENANT_METADATA: Final = "synergai-tenant"
"""Metadata with the tenant of all requests in the call that name none themselves."""
REQUEST_ID: Final = "request-id"
"""Metadata and header with the id of a request: of a call, as its client chose it, and of every
error; in a stream, a parameter of the failed response."""
TRACEPARENT: Final = "traceparent"
"""Metadata and header with the trace context of a call (W3C Trace Context); in a stream, a
parameter of the request."""
_VALID: Final = re.compile("[!-~]{1,128}")
"""What can be printed and sent in a header; clients may write anything."""


def valid_id(text: str) -> str:
    """Return an id that a client has given if it is valid; otherwise, an empty string."""
    return text if _VALID.fullmatch(text) else ""


class CallIds(NamedTuple):
    """What a client says to find a call again: an id, and the trace that it is part of."""

    chosen: str = ""
    traceparent: str = ""


NO_IDS: Final = CallIds()


def ids_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> CallIds:
    """Return the valid id and the trace context in a call's metadata."""
    chosen = traceparent = ""
    for key, content in metadata:
        if key == REQUEST_ID:
            chosen = valid_id(str(content))
        elif key == TRACEPARENT:
            traceparent = str(content)
    return CallIds(chosen, traceparent) if chosen or traceparent else NO_IDS


def tenant_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the tenant in a call's metadata; empty if there is none."""
    for key, content in metadata:
        if key == TENANT_METADATA:
            return checked_tenant(str(content))
    return ""


def checked_tenant(text: str) -> str:
    """Return `text` if it is a valid tenant name; empty is the default tenant."""
    return validate_name(text, "tenant name") if text else ""
