"""Our own count of a LoadGen run: LoadGen knows no deadlines, and asks no one why."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING

from synergai.loadgen.messages import RunCounts
from synergai.loadgen.outcome import Outcome, outcome_of

if TYPE_CHECKING:
    from synergai.errors import SynergaiError


class QueryCounter:
    """Counts issues and ends of queries; written by one thread, and read by another.

    Args:
        qos_s: a query that takes longer is a violation; None if none is.

    Attributes:
        fault: why the run cannot go on, once it cannot.
        done: how many queries have ended.
    """

    def __init__(self, qos_s: float | None) -> None:
        self.fault: SynergaiError | None = None
        self._qos_s = math.inf if qos_s is None else qos_s
        self.begin()

    def begin(self) -> None:
        """Count from now on: what came before was to warm up."""
        self.done = 0
        self._issued = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._first_failure = ""
        self._began_at = self._moved_at = self._ended_at = time.monotonic()

    def issued(self, queries: int) -> None:
        """So many queries more were issued."""
        if self._issued == self.done:
            self._moved_at = time.monotonic()
        self._issued += queries

    def ended(self, since: float, error: SynergaiError | None) -> None:
        """A query ended now, with this error if with any; its QoS began at `since`."""
        self._moved_at = self._ended_at = now = time.monotonic()
        self.done += 1
        outcome = outcome_of(error, now - since, self._qos_s)
        self._outcomes[outcome] += 1
        if outcome is Outcome.FAILED and not self._first_failure:
            self._first_failure = str(error)

    def silent_s(self) -> float:
        """For how long queries have been out without any of them ending."""
        return time.monotonic() - self._moved_at if self._issued > self.done else 0.0

    def elapsed_s(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._began_at

    def counted(self, inputs: str) -> RunCounts:
        """The count; `inputs` says what was sent, for people."""
        outcomes = self._outcomes
        return RunCounts(
            inputs=inputs,
            queries=self.done,
            failed=outcomes[Outcome.FAILED],
            expired=outcomes[Outcome.EXPIRED],
            rejected=outcomes[Outcome.REJECTED],
            late=outcomes[Outcome.LATE],
            seconds=self._ended_at - self._began_at,
            first_failure=self._first_failure,
        )
