"""How a request can end, for whoever asked with a deadline."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from synergai.errors import DeadlineExceeded, Overloaded

if TYPE_CHECKING:
    from synergai.errors import SynergaiError


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
