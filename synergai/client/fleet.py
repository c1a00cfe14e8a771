"""Status of workers, and version policies of engines, as reported by a gateway."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synergai.client.store import PlacedEngine, placed_from_proto
from synergai.domain import (
    Configuration,
    Engine,
    EngineName,
    Session,
    UnusableSession,
    WorkerClass,
    WorkerId,
)
from synergai.wire.converters import (
    configuration_from_proto,
    engine_from_proto,
    from_message,
    profile_entry_from_proto,
    session_from_proto,
    unusable_session_from_proto,
)

if TYPE_CHECKING:
    from synergai.profiles.dictionary import ProfileEntry
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


class WorkerState(enum.Enum):
    """State of a worker, with the values of ``synergai.v1.WorkerState``."""

    UNKNOWN = 0
    IDLE = 1
    BUSY = 2
    DRAINING = 3
    EJECTED = 4

    @classmethod
    def _missing_(cls, value: object) -> WorkerState:  # noqa: ARG003 - a state of a newer gateway
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class WorkerProfile:
    """Basis of a worker's estimates of one engine: its fastest entry, and the observed pace.

    The pace is the time per query over the profiled one; None if it was not observed.
    """

    entry: ProfileEntry
    pace: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLink:
    """Link between the gateway and a worker, learned from transfers; 0 is unknown."""

    to_bytes_per_s: float = 0.0
    from_bytes_per_s: float = 0.0
    round_trip_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLink:
    """Link to a worker from another one, learned from the tensors that were pulled from that."""

    worker_id: WorkerId
    bytes_per_s: float
    round_trip_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """Snapshot of a worker.

    Attributes:
        cores: whole cores that its agent may use.
        memory_bytes: memory that its agent may use.
        configurations: configurations that it can run engines in.
        sessions: sessions resident in its memory.
        queries_done: queries completed since it registered.
        last_heard_s: seconds since its last heartbeat.
        unprofiled: engines without a dictionary entry for this worker's class.
        power_mode: the current power mode; empty if there is none or it is unknown.
        switch_s: duration of the last power mode switch in seconds; 0 before the first.
        meter: name of the power meter; empty if power is not measured.
        watts: mean power of the whole machine since the last heartbeat; None if not measured.
        joules: energy used since its agent started; None if not measured.
        profiles: profiles of its engines, by engine name.
        engines_rss_bytes: resident memory of its engines at the last heartbeat.
        memory_limit_bytes: limit of the memory of all its engines; 0 if there is none.
        memory_enforcement: how its agent enforces the limit; empty if there is none.
        placed: versions of the gateway's store that are placed on it.
        labels: names by which operators select it.
        unusable: engines that it cannot run in some of its configurations.
        link: its link to the gateway.
        peers: links from other workers.
    """

    id: WorkerId
    worker_class: WorkerClass
    state: WorkerState
    cores: int
    memory_bytes: int
    configurations: tuple[Configuration, ...]
    engines: tuple[Engine, ...]
    sessions: tuple[Session, ...]
    queries_done: int
    last_heard_s: float
    unprofiled: tuple[EngineName, ...]
    power_mode: str = ""
    switch_s: float = 0.0
    meter: str = ""
    watts: float | None = None
    joules: float | None = None
    profiles: tuple[WorkerProfile, ...] = ()
    engines_rss_bytes: int = 0
    memory_limit_bytes: int = 0
    memory_enforcement: str = ""
    placed: tuple[PlacedEngine, ...] = ()
    labels: tuple[str, ...] = ()
    unusable: tuple[UnusableSession, ...] = ()
    link: WorkerLink = WorkerLink()
    peers: tuple[PeerLink, ...] = ()


def worker_from_proto(message: fleet_pb2.Worker) -> WorkerStatus:
    """Convert a worker from its message."""
    return from_message(
        WorkerStatus,
        message,
        state=WorkerState(message.state),
        configurations=tuple(map(configuration_from_proto, message.configurations)),
        engines=tuple(map(engine_from_proto, message.engines)),
        sessions=tuple(map(session_from_proto, message.sessions)),
        unprofiled=tuple(map(EngineName, message.unprofiled)),
        profiles=tuple(
            from_message(WorkerProfile, each, entry=profile_entry_from_proto(each.entry))
            for each in message.profiles
        ),
        placed=tuple(map(placed_from_proto, message.placed)),
        labels=tuple(message.labels),
        unusable=tuple(map(unusable_session_from_proto, message.unusable)),
        link=from_message(WorkerLink, message.link),
        peers=tuple(from_message(PeerLink, each) for each in message.peers),
    )
