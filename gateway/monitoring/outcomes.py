"""Outcomes of requests and jobs, as values of the metrics' label."""

from __future__ import annotations

from typing import Final

from synergai.domain import JobState
from synergai.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    NotSupported,
    Overloaded,
    PermissionDenied,
    SynergaiError,
    WrongState,
)

OK: Final = "ok"
"""Completed within its deadline, or without one."""
LATE: Final = "late"
"""Completed after its deadline."""


def request_outcome(error: SynergaiError | None, *, late: bool = False) -> str:
    """Return the outcome of a request."""
    match error:
        case None:
            return LATE if late else OK
        case DeadlineExceeded():
            return "expired"
        case Overloaded():
            return "rejected"
        case Cancelled():
            return "cancelled"
        case InvalidInput() | NotFound() | NotSupported() | PermissionDenied() | WrongState():
            return "invalid"
        case _:
            return "failed"


def job_outcome(state: JobState, *, late: bool = False) -> str:
    """Return the outcome of a job that ended in `state`."""
    if state is JobState.SUCCEEDED:
        return LATE if late else OK
    return state.name.lower()
