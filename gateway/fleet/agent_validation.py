"""Validation of values that agents send."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergai.errors import InvalidInput
from synergai.runtime.text import printable
from synergai.wire.converters import engine_from_proto

if TYPE_CHECKING:
    from synergai.domain import Engine
    from synergai.v1 import common_pb2

MAX_SECONDS: Final = 1e9
"""Longest time that a worker may report, some thirty years: profiles and plans can hold it."""
_MAX_DETAIL: Final = 1000


class ProtocolViolation(InvalidInput):
    """An agent sent an impossible value; its connection is closed."""


def checked_seconds(seconds: float, what: str) -> float:
    """Return a duration measured by a worker."""
    if not 0 <= seconds <= MAX_SECONDS:
        raise ProtocolViolation(f"{what} must be from 0 to {MAX_SECONDS:g} seconds, not {seconds}")
    return seconds


def checked_rate(bytes_per_s: float) -> float:
    """Return a rate measured by a worker."""
    if not (math.isfinite(bytes_per_s) and bytes_per_s >= 0):
        raise ProtocolViolation(f"a rate must be at least 0 bytes/s, not {bytes_per_s}")
    return bytes_per_s


def printable_detail(detail: str) -> str:
    """Return a worker's error detail, truncated and safe for terminals: clients see it."""
    return printable(detail[:_MAX_DETAIL])


def engine_from_agent(message: common_pb2.Engine) -> Engine:
    """Convert an engine of a worker; its texts are safe for terminals and logs."""
    engine = engine_from_proto(message)
    return replace(
        engine,
        digest=printable(engine.digest),
        fault=printable(engine.fault),
        unverified=printable(engine.unverified),
        variants=tuple(replace(each, digest=printable(each.digest)) for each in engine.variants),
        unused_variants=tuple(
            replace(each, reason=printable(each.reason)) for each in engine.unused_variants
        ),
        stage_of=printable(engine.stage_of),
        samples_digest=printable(engine.samples_digest),
        other_samples="",
    )
