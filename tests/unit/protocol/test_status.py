"""Status codes of errors, in gRPC and in HTTP."""

from __future__ import annotations

import pytest

from synergai import errors
from synergai.protocol.status import CODES, HTTP_STATUSES, http_status, retry_after_s


@pytest.mark.parametrize(
    ("error", "status", "after_s"),
    [
        (errors.InvalidInput("x"), 400, None),
        (errors.EngineNotFound("x"), 404, None),
        (errors.IdempotencyConflict("x"), 409, None),
        (errors.EngineUnloaded("x"), 409, None),
        (errors.DeadlineExceeded("x"), 504, None),
        (errors.Cancelled("x"), 499, None),
        (errors.Overloaded("x"), 429, 1),
        (errors.QuotaExceeded("lab", "streams", 2), 429, 1),
        (errors.QuotaExceeded("lab", "bytes_per_s", 10, 2.1), 429, 3),
        (errors.QuotaExceeded("lab", "bytes_per_s", 10, 1e9), 429, 3600),
        (errors.Unavailable("x"), 503, 1),
        (errors.NotSupported("x"), 501, None),
        (errors.InternalError("x"), 500, None),
        (errors.SynergaiError("x"), 500, None),
    ],
)
def test_error_has_one_http_status(
    error: errors.SynergaiError, status: int, after_s: int | None
) -> None:
    assert (http_status(error), retry_after_s(error)) == (status, after_s)


def test_every_grpc_status_of_ours_has_an_http_status() -> None:
    assert set(CODES.values()) == HTTP_STATUSES.keys()
