"""Version policy of an engine as reported by a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from synergai.wire.converters import from_message

if TYPE_CHECKING:
    from synergai.v1 import fleet_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFigures:
    """A version of an engine, and its figures since the gateway started.

    Attributes:
        reason: why it is not in service, or cannot be the highest one; otherwise empty.
        prepared: whether a worker had loaded it, so requests may switch to it.
        loaded: whether a worker has it in memory now.
        errors: number of these that failed, expired or were rejected.
        mean_s: mean time of a successful request in seconds; 0 without one.
        labelled: number of queries of ended jobs with a known label.
    """

    version: str
    in_service: bool
    reason: str
    prepared: bool
    loaded: bool
    requests: int
    errors: int
    mean_s: float
    queries: int
    labelled: int
    correct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPolicy:
    """Policy of an engine for requests that name no version.

    Attributes:
        base: the pinned version, or the old one of a rollout; empty for the highest usable one.
        share: share of the requests that get the target, 0 to 1.
        reason: why the gateway rolled back the last rollout; otherwise empty.
    """

    engine: str
    base: str
    target: str
    share: float
    reason: str
    versions: tuple[VersionFigures, ...]


def version_policy_from_proto(message: fleet_pb2.VersionPolicy) -> VersionPolicy:
    """Convert a policy from its message."""
    return from_message(
        VersionPolicy,
        message,
        target=message.rollout.version,
        share=message.rollout.share,
        versions=tuple(from_message(VersionFigures, each) for each in message.versions),
    )
