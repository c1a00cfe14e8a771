"""Status codes of errors, in gRPC and in HTTP."""

import grpc
import pytest

from synergai import errors
from synergai.wire.status import (
    error_details,
    error_from_status,
    http_status,
    retry_after_ms,
    retry_after_s,
    status_code,
    stream_error,
)


@pytest.mark.parametrize(
    ("error", "status", "after_s"),
    [
        (errors.InvalidInput("x"), 400, None),
        (errors.EngineNotFound("x"), 404, None),
        (errors.IdempotencyConflict("x", ["engine"]), 409, None),
        (errors.EngineUnloaded("x"), 409, None),
        (errors.DeadlineExceeded("x"), 504, None),
        (errors.Cancelled("x"), 499, None),
        (errors.Overloaded("x"), 429, 1),
        (errors.MessageTooLarge("x"), 413, None),
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


def test_large_response_has_the_status_of_exhausted_resources_and_is_not_retried() -> None:
    error = errors.MessageTooLarge("x")
    assert status_code(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert retry_after_ms(error) is None
    assert type(error_from_status(status_code(error), "x")) is errors.Overloaded


def test_details_are_bounded_and_can_be_encoded() -> None:
    details = error_details(errors.InvalidInput("\ud800" + "x" * 5000))
    assert len(details.encode()) < 1100
    assert stream_error(errors.InvalidInput("\ud800" + "x" * 5000)).error_message == details
