"""Ids that clients choose for their requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

REQUEST_ID: Final = "request-id"
"""Metadata and header with the id of a request: of a call, as its client chose it, and of every
error; in a stream, a parameter of the failed response."""
_VALID: Final = re.compile("[!-~]{1,128}")
"""What can be printed and sent in a header; clients may write anything."""


def valid_id(*given: str) -> str:
    """Return the first valid id that a client has given; empty if there is none."""
    return next((text for text in given if _VALID.fullmatch(text)), "")


def id_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the valid id in a call's metadata; empty if there is none."""
    for key, content in metadata:
        if key == REQUEST_ID:
            return valid_id(str(content))
    return ""
