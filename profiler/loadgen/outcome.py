"""What becomes of requests, and what a LoadGen process and its log say of a run."""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct
from msgspec.json import Decoder

from synergai.errors import DeadlineExceeded, InternalError, Overloaded, SynergaiError

if TYPE_CHECKING:
    from pathlib import Path


class RequestOutcome(enum.Enum):
    """Outcome of a request; all but MET are violations."""

    MET = "met"
    LATE = "late"
    EXPIRED = "expired"
    REJECTED = "rejected"
    FAILED = "failed"


def outcome_of(error: SynergaiError | None, latency_s: float, deadline_s: float) -> RequestOutcome:
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


class LoadProgress(Struct, frozen=True, tag=True):
    """Completed queries and elapsed seconds so far."""

    queries: int
    seconds: float


class RunFailed(Struct, frozen=True, tag=True):
    """The run was aborted."""

    reason: str


class RunCounts(Struct, frozen=True, kw_only=True, tag=True):
    """Counts of a completed run, in addition to LoadGen's figures.

    Attributes:
        inputs: human-readable description of the samples.
        failed: queries that failed with an error other than expiry or rejection.
        expired: queries that the gateway dropped at their deadline.
        rejected: queries that the gateway rejected for overload.
        late: queries that completed after the QoS time.
        seconds: time from the first issue to the last completion.
        first_failure: error of the first failed query; empty if none failed.
        measure: name of the accuracy measure; empty if accuracy was not evaluated.
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
        """Queries that did not complete within the QoS time, for any reason."""
        return self.failed + self.expired + self.rejected + self.late

    @property
    def goodput(self) -> float:
        """Queries per second that completed within the QoS time."""
        return (self.queries - self.violations) / self.seconds if self.seconds else 0.0


Message: TypeAlias = LoadProgress | RunFailed | RunCounts

DECODER: Final[Decoder[Message]] = Decoder(Message)


DETAIL_FILE: Final = "mlperf_log_detail.txt"
SUMMARY_FILE: Final = "mlperf_log_summary.txt"
_MARK: Final = ":::MLLOG "


def read_detail_log(path: Path) -> dict[str, Any]:
    """Return the values of a detail log of LoadGen by key; those of a result may be missing."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
        entries = [json.loads(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK)]
    except (OSError, ValueError) as error:
        raise incomplete_log(path) from error
    return {entry["key"]: entry["value"] for entry in entries}


def incomplete_log(path: Path) -> InternalError:
    return InternalError(f"LoadGen's log {path} is missing or incomplete")
