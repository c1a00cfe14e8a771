"""Deadlines as given by callers and as carried by the protocol."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from google.protobuf.timestamp_pb2 import Timestamp

from synergai.errors import DeadlineExceeded, InvalidInput

if TYPE_CHECKING:
    from datetime import datetime

_NO_LIMIT_S: Final = 10 * 365 * 86400.0
"""Longer deadlines mean no deadline: clocks and the protocol's integers are bounded."""


def normalize_deadline(seconds: float | None) -> float | None:
    """Return a caller's deadline; None if it is too far away to matter."""
    if seconds is None:
        return None
    try:
        is_far, is_number = seconds > _NO_LIMIT_S, not math.isnan(seconds)
    except TypeError:
        is_far = is_number = False
    if not is_number:
        raise InvalidInput(f"a deadline must be a number of seconds, not {seconds!r}")
    if is_far:
        return None
    if seconds <= 0:
        raise DeadlineExceeded(f"a deadline must be more than 0 seconds from now, not {seconds:g}")
    return seconds


class Budget:
    """Seconds that several calls share; None means no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._ends_at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the seconds that are left; None without a limit."""
        if self._ends_at is None:
            return None
        seconds = self._ends_at - time.monotonic()
        if seconds <= 0:
            raise DeadlineExceeded("no response before the deadline")
        return seconds


def seconds_until(instant: datetime) -> float:
    """Return the seconds from now to an instant; one without a zone is in local time."""
    seconds = instant.timestamp() - time.time()
    if seconds <= 0:
        raise DeadlineExceeded(f"{instant:%Y-%m-%d %H:%M:%S} has passed")
    return seconds


def to_timestamp(instant: datetime) -> Timestamp:
    """Return an instant as a message; one without a zone is in local time."""
    message = Timestamp()
    try:
        message.FromDatetime(instant.astimezone())
    except AttributeError:
        raise InvalidInput(f"by must be a datetime, not {instant!r}") from None
    return message


def to_microseconds(seconds: float) -> int:
    """Return `seconds` as the protocol's parameter ``timeout``, in which 0 means no timeout."""
    return max(1, round(seconds * 1e6))
