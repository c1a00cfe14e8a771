"""What the process that runs LoadGen tells its parent: one JSON object per line of a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from synergai.runtime.report_pipe import MessageCodec


@dataclass(frozen=True, slots=True)
class RunProgress:
    """So many queries are complete, after so many seconds."""

    queries: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The run is over before its end, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """Our own count, beside LoadGen's figures.

    Attributes:
        inputs: what was sent, for people.
        queries: how many were issued.
        failed: of these, ended with another error than the next two.
        expired: not done by the deadline that the gateway was told.
        rejected: refused because of too much to do.
        late: answered, but after the QoS.
        seconds: from the first issue to the last completion.
        first_failure: what the first of the failed said; empty if there was none.
        measure: what of the answers' accuracy was measured; empty if nothing was.
        accuracy: the figure, from 0 to 1.
        evaluated: how many answers it rests on.
    """

    inputs: str
    queries: int
    failed: int
    expired: int
    rejected: int
    late: int
    seconds: float
    first_failure: str = ""
    measure: str = ""
    accuracy: float = 0.0
    evaluated: int = 0

    @property
    def violations(self) -> int:
        """Queries that were not answered in time, whyever."""
        return self.failed + self.expired + self.rejected + self.late

    @property
    def goodput(self) -> float:
        """Queries per second that were answered within the QoS."""
        return (self.queries - self.violations) / self.seconds if self.seconds else 0.0


Message: TypeAlias = RunProgress | RunFailed | RunCounts

MESSAGES: Final = MessageCodec[Message](RunProgress, RunFailed, RunCounts)
