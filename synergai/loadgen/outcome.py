"""How a request can end, for whoever asked with a deadline."""

from __future__ import annotations

import enum

from synergai.errors import DeadlineExceeded, Overloaded, SynergaiError


class Outcome(enum.Enum):
    """How a request ended; all but the first are violations."""

    MET = "met"
    LATE = "late"
    EXPIRED = "expired"
    REJECTED = "rejected"
    FAILED = "failed"


def outcome_of(error: SynergaiError | None, latency_s: float, deadline_s: float) -> Outcome:
    """How a request ended.

    Args:
        error: why there was no answer; None if there was one.
        latency_s: until the end, from the instant at which it was to be sent.
        deadline_s: within which the answer was wanted; infinite if there is no hurry.
    """
    match error:
        case None:
            return Outcome.MET if latency_s <= deadline_s else Outcome.LATE
        case Overloaded():
            return Outcome.REJECTED
        case DeadlineExceeded():
            return Outcome.EXPIRED
        case _:
            return Outcome.FAILED


def raise_on_failures(failed: int, asked: int, first_failure: str) -> None:
    """Have a command end as failed that has already told its figures.

    A gateway that refuses what would come too late does as it should, and what is late is measured;
    requests that failed for any other reason say that something is broken, and that the figures
    are not of what was to be measured.

    Args:
        failed: how many ended as `Outcome.FAILED`.
        asked: of how many.
        first_failure: why the first of them did.

    Raises:
        SynergaiError: there are any.
    """
    if failed:
        raise SynergaiError(f"{failed:,} of {asked:,} requests failed; the first: {first_failure}")
