"""What the process that runs LoadGen tells its parent: one JSON object per line of a pipe."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Progressed:
    """So many queries are complete, after so many seconds."""

    queries: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The run is over before its end, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Our own count, beside LoadGen's figures.

    Attributes:
        inputs: what was sent, for people.
        queries: how many were issued.
        failed: of these, answered with an error.
        late: of these, answered, but after the QoS.
        seconds: from the first issue to the last completion.
        first_failure: what the first error said; empty if there was none.
    """

    inputs: str
    queries: int
    failed: int
    late: int
    seconds: float
    first_failure: str = ""

    @property
    def violations(self) -> int:
        """Queries that failed or came late."""
        return self.failed + self.late

    @property
    def goodput(self) -> float:
        """Queries per second that were answered within the QoS."""
        return (self.queries - self.violations) / self.seconds if self.seconds else 0.0


Message: TypeAlias = Progressed | Failed | Counted

_KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Progressed, Failed, Counted)
}


def encode(message: Message) -> bytes:
    """The line for `message`."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of a line that `encode` wrote."""
    fields = json.loads(line)
    message: Message = _KINDS[fields.pop("kind")](**fields)
    return message
