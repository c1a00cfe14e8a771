"""Outcomes of a request, from the client's point of view."""

from __future__ import annotations

import enum

from synergai.errors import DeadlineExceeded, Overloaded, SynergaiError


class RequestOutcome(enum.Enum):
    """Outcome of a request; all but MET are violations."""

    MET = "met"
    LATE = "late"
    EXPIRED = "expired"
    REJECTED = "rejected"
    FAILED = "failed"


def outcome_of(error: SynergaiError | None, latency_s: float, deadline_s: float) -> RequestOutcome:
    """Return the outcome of a request."""
    match error:
        case None:
            return RequestOutcome.MET if latency_s <= deadline_s else RequestOutcome.LATE
        case Overloaded():
            return RequestOutcome.REJECTED
        case DeadlineExceeded():
            return RequestOutcome.EXPIRED
        case _:
            return RequestOutcome.FAILED


def raise_on_failures(failed: int, total: int, first_failure: str) -> None:
    """Fail a command, after it printed its results, if any request failed.

    Rejected, expired and late requests are part of the measurement. Any other failure means that
    something is broken and the results are not representative.
    """
    if failed:
        raise SynergaiError(f"{failed:,} of {total:,} requests failed; the first: {first_failure}")
