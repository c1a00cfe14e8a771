"""Error responses: a JSON object with the message under ``error``, as the protocol defines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from synergai.errors import QuotaExceeded, Unauthenticated
from synergai.runtime.text import encodable
from synergai.wire.call_metadata import REQUEST_ID
from synergai.wire.status import MAX_DETAILS, QUOTA_METADATA, http_status, retry_after_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.errors import SynergaiError

JSON = "application/json"


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a JSON body."""
    # Exactly this media type: KServe's client reads error messages of no other.
    return Response(msgspec.json.encode(content), status, headers, media_type=JSON)


def error_response(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with an error message."""
    return json_response({"error": encodable(message[:MAX_DETAILS])}, status, headers)


def response_to(error: SynergaiError, chosen_id: str = "") -> Response:
    """Return the response to a request that failed, with its id; `chosen_id` is the client's."""
    after_s = retry_after_s(error)
    headers = {} if after_s is None else {"retry-after": str(after_s)}
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, QuotaExceeded):
        headers[QUOTA_METADATA] = error.quota
    text = str(error)
    if request_id := chosen_id or error.request_id:
        headers[REQUEST_ID] = request_id
        mark = f" (request {request_id})"
        text = text[: MAX_DETAILS - len(mark)] + mark
    return error_response(text, http_status(error), headers)
