"""Entries of the audit log. docs/guide/security.md documents their format."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr

MAX_TEXT: Final = 256
"""Longest value in characters; clients choose some of them."""
_TEXTS: Final = ("caller", "tenant", "credential", "peer", "call", "object", "result", "reason")
"""Fields of a line, in its order."""


class Entry(Struct, frozen=True, kw_only=True):
    """One line of the log. Values never contain tensors, tokens or secrets, and are cut.

    Attributes:
        credential: how the caller authenticated: ``token``, ``jwt``, ``certificate``, ``secret``
            or ``none``.
        result: name of the gRPC status code.
        refused: whether it was refused for want of permission or quota.
    """

    caller: str
    tenant: str = ""
    credential: str = "none"
    peer: str
    call: str
    object: str = ""
    result: str = "OK"
    reason: str = ""
    quota: str = ""
    refused: bool = False

    def __post_init__(self) -> None:
        # Here rather than in the line: refusals are kept for a while, and a name may be as long
        # as a message.
        for name in _TEXTS:
            if len(text := getattr(self, name)) > MAX_TEXT:
                force_setattr(self, name, text[:MAX_TEXT])


def to_line(entry: Entry, unix_time: float, count: int = 1) -> str:
    """Return an entry as a line of JSON in ASCII, with its line break."""
    at = datetime.fromtimestamp(unix_time, UTC).isoformat(timespec="milliseconds")
    texts = {name: getattr(entry, name) for name in _TEXTS}
    content = {"time": at.replace("+00:00", "Z"), **texts, "count": count}
    return json.dumps(content, separators=(",", ":")) + "\n"
