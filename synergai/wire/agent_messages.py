"""What agents send to the hub, validated once: what is behind this module trusts the structs.

Text for people is printable and short, since clients and operators see it. A value that no agent
can send is a `ProtocolViolation`, which costs the agent its connection.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from synergai.domain import Configuration, Engine, EngineName, Session, WorkerClass, WorkerId
from synergai.errors import InvalidInput, NotSupported
from synergai.names import validate_name
from synergai.runtime.text import printable
from synergai.wire.converters import (
    configuration_from_proto,
    engine_from_proto,
    from_message,
    session_from_proto,
    unusable_session_from_proto,
)
from synergai.wire.limits import HUB_VERSION
from synergai.wire.work_transport import SentOver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from synergai.v1 import common_pb2, hub_pb2

MAX_SECONDS: Final = 1e9
"""Longest time that a worker may report, some thirty years: profiles and plans can hold it."""
MAX_ENGINES: Final = 10_000
"""Engines of one worker."""
MAX_UNUSABLE: Final = 10_000
"""Sessions that one worker cannot run."""
_MAX_SESSION_SIZES: Final = 100_000
_MAX_CONFIGURATIONS: Final = 1024
_MAX_LABELS: Final = 64
_MAX_VERSION_TEXT: Final = 128
_MAX_INSTANCE_TEXT: Final = 64
_MAX_METER_TEXT: Final = 256
_MAX_ENFORCEMENT_TEXT: Final = 128
_MAX_DETAIL: Final = 1000
_MAX_PORT: Final = 65535
_MAX_PEERS: Final = 1024
_SHA256_BYTES: Final = 32
_MIN_TOKEN: Final = 32
_MAX_TOKEN: Final = 256


class ProtocolViolation(InvalidInput):
    """An agent sent an impossible value; its connection is closed."""


class Registration(Struct, frozen=True, kw_only=True):
    """The registration of a worker.

    Attributes:
        configurations: for all of its engines, so none names a variant.
        session_bytes: memory of sessions that it has loaded before.
        fetched: those of its engines that it has from the store.
        token: proof of its identity; empty without one.
        peer_port: port at which agents pull tensors from it; 0 without one.
    """

    worker_id: WorkerId
    worker_class: WorkerClass
    agent_version: str
    instance: str
    cores: int
    engine_cores: int
    memory_bytes: int
    memory_limit_bytes: int
    memory_enforcement: str
    configurations: tuple[Configuration, ...]
    engines: Mapping[EngineName, Engine]
    sessions: Set[Session]
    unusable: dict[Session, str]
    session_budget_bytes: int
    session_bytes: dict[Session, int]
    pinned: frozenset[Session]
    backends: frozenset[str]
    labels: tuple[str, ...]
    power_mode: str
    meter: str
    token: str
    peer_port: int
    peer_certificate: bytes
    fetched: frozenset[EngineName]


class PowerDraw(Struct, frozen=True):
    """Mean power of a machine since the last heartbeat, and energy since its agent started."""

    watts: float
    joules: float


class Heartbeat(Struct, frozen=True):
    """A heartbeat.

    Attributes:
        draw: None if it is not measured.
        sent_bytes_per_s: rate of the last larger transfer to the gateway; 0 if unknown.
        received_bytes_per_s: rate at which large messages arrive from the gateway; 0 if unknown.
        peers: links from the workers that tensors were pulled from.
    """

    sequence: int
    engines_rss_bytes: int
    sent_bytes_per_s: float
    received_bytes_per_s: float
    peers: Mapping[str, SentOver]
    draw: PowerDraw | None


class SessionChange(Struct, frozen=True):
    """A session that was loaded in `setup_s`, or dropped, or not loaded because of `fault`."""

    session: Session
    resident: bool
    setup_s: float
    fault: str
    bytes: int
    no_room: bool


class EngineChange(Struct, frozen=True):
    """An engine whose description has changed."""

    engine: Engine


class UnusableConfigurations(Struct, frozen=True):
    """All sessions of an engine that a worker cannot run, and why."""

    engine: EngineName
    reasons: Mapping[Session, str]


class PowerChange(Struct, frozen=True):
    """A change of the power mode; `switch_s` is 0 unless the agent made it for an assignment."""

    mode: str
    switch_s: float


class PlacementReport(Struct, frozen=True):
    """What an agent has made of a version that is placed on it."""

    engine: str
    version: int
    digest: str
    state: common_pb2.PlacedState.ValueType
    received: int
    fault: str
    fetched: bool


class Draining(Struct, frozen=True):
    """The agent is stopping: it accepts no further assignments."""


ControlMessage: TypeAlias = (
    Registration
    | Heartbeat
    | SessionChange
    | EngineChange
    | UnusableConfigurations
    | PowerChange
    | PlacementReport
    | Draining
)


def read_control(message: hub_pb2.AgentControl) -> ControlMessage | None:
    """Return a control message; None if its kind is of a later version."""
    match message.WhichOneof("message"):
        case "register":
            return read_registration(message.register)
        case "heartbeat":
            return read_heartbeat(message.heartbeat)
        case "session_changed":
            return _read_session_change(message.session_changed)
        case "engine_changed":
            return EngineChange(read_engine(message.engine_changed.engine))
        case "configurations_unusable":
            return _read_unusable(message.configurations_unusable)
        case "power_changed":
            power = message.power_changed
            return PowerChange(_mode(power.mode), checked_seconds(power.switch_s, "switching"))
        case "placed":
            placed = message.placed
            return from_message(PlacementReport, placed, fault=printable_detail(placed.fault))
        case "draining":
            return Draining()
        case _:
            return None


def read_registration(message: hub_pb2.Register) -> Registration:
    if message.protocol_version != HUB_VERSION:
        raise NotSupported(
            f"this gateway speaks version {HUB_VERSION} of the hub protocol, the agent "
            f"version {message.protocol_version}: install the same release on both"
        )
    worker_id = WorkerId(validate_name(message.worker_id, "worker id"))
    where = f"worker {worker_id!r}"
    _check_sizes(message, where)
    _check_connection(message, where)
    engines = _engines_by_name(message.engines, where)
    sessions = set(map(session_from_proto, message.sessions))
    for session in sessions:
        if session.engine not in engines:
            raise InvalidInput(f"{where} has a session of {session.engine!r}, but no such engine")
    configurations = tuple(dict.fromkeys(map(configuration_from_proto, message.configurations)))
    for configuration in configurations:
        if configuration.variant:
            raise InvalidInput(
                f"{where} has the configuration {configuration}: a worker's configurations are "
                "for all of its engines, and name no variant"
            )
    return from_message(
        Registration,
        message,
        worker_id=worker_id,
        worker_class=WorkerClass(validate_name(message.worker_class, "worker class")),
        configurations=configurations or (Configuration(),),
        engines=engines,
        sessions=sessions,
        unusable=_reasons(message.unusable),
        session_bytes={
            session: each.bytes
            for each in message.session_memory
            if (session := session_from_proto(each.session)).engine in engines
        },
        pinned=frozenset(map(session_from_proto, message.pinned)),
        backends=frozenset(validate_name(each, "backend name") for each in message.backends),
        labels=tuple(validate_name(each, "label") for each in message.labels),
        power_mode=_mode(message.power_mode),
        fetched=frozenset(engines.keys() & set(message.fetched)),
    )


def read_heartbeat(message: hub_pb2.Heartbeat) -> Heartbeat:
    if len(message.peers) > _MAX_PEERS:
        raise ProtocolViolation(f"a worker reports at most {_MAX_PEERS} links")
    draw = None
    if message.HasField("draw"):
        draw = PowerDraw(message.draw.watts, message.draw.joules)
        if not (math.isfinite(draw.watts) and math.isfinite(draw.joules) and draw.watts >= 0):
            raise ProtocolViolation("power and energy must be finite, and power not negative")
    return Heartbeat(
        message.sequence,
        message.engines_rss_bytes,
        _checked_rate(message.sent_bytes_per_s),
        _checked_rate(message.received_bytes_per_s),
        {
            validate_name(each.worker_id, "worker id"): SentOver(
                _checked_rate(each.bytes_per_s), checked_seconds(each.round_trip_s, "a round trip")
            )
            for each in message.peers
        },
        draw,
    )


def read_engine(message: common_pb2.Engine) -> Engine:
    """Return an engine of a worker, with printable texts."""
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
    )


def checked_seconds(seconds: float, what: str) -> float:
    """Return a duration that a worker has measured."""
    if not 0 <= seconds <= MAX_SECONDS:
        raise ProtocolViolation(f"{what} must be from 0 to {MAX_SECONDS:g} seconds, not {seconds}")
    return seconds


def printable_detail(detail: str) -> str:
    """Return a worker's error detail, truncated and printable."""
    return printable(detail[:_MAX_DETAIL])


def _read_session_change(message: hub_pb2.SessionChanged) -> SessionChange:
    session = session_from_proto(message.session)
    times = (message.backend_start_s, message.model_load_s, message.data_preparation_s)
    return from_message(
        SessionChange,
        message,
        session=session,
        setup_s=sum(checked_seconds(seconds, f"loading {session.engine!r}") for seconds in times),
        fault=printable_detail(message.fault),
    )


def _read_unusable(message: hub_pb2.ConfigurationsUnusable) -> UnusableConfigurations:
    engine, reasons = EngineName(message.engine), _reasons(message.sessions)
    if any(session.engine != engine for session in reasons):
        raise ProtocolViolation("unusable configurations of another engine")
    return UnusableConfigurations(engine, reasons)


def _reasons(messages: Iterable[common_pb2.UnusableSession]) -> dict[Session, str]:
    found = map(unusable_session_from_proto, messages)
    return {each.session: printable_detail(each.reason) for each in found}


def _engines_by_name(messages: Iterable[common_pb2.Engine], where: str) -> dict[EngineName, Engine]:
    engines: dict[EngineName, Engine] = {}
    for engine in map(read_engine, messages):
        if engine.name in engines:
            raise InvalidInput(f"{where} has engine {engine.name!r} twice")
        engines[engine.name] = engine
    return engines


def _check_sizes(message: hub_pb2.Register, where: str) -> None:
    sessions = max(len(message.sessions), len(message.pinned))
    for what, count, limit in (
        ("engines or sessions", max(len(message.engines), sessions), MAX_ENGINES),
        ("configurations", len(message.configurations), _MAX_CONFIGURATIONS),
        ("backends or labels", max(len(message.backends), len(message.labels)), _MAX_LABELS),
        ("sizes of sessions", len(message.session_memory), _MAX_SESSION_SIZES),
        ("unusable configurations", len(message.unusable), MAX_UNUSABLE),
    ):
        if count > limit:
            raise InvalidInput(f"{where} has more than {limit:,} {what}")
    for what, text, limit in (
        ("agent version", message.agent_version, _MAX_VERSION_TEXT),
        ("instance id", message.instance, _MAX_INSTANCE_TEXT),
        ("power meter name", message.meter, _MAX_METER_TEXT),
        ("memory enforcement text", message.memory_enforcement, _MAX_ENFORCEMENT_TEXT),
    ):
        if len(text) > limit or not text.isprintable():
            raise InvalidInput(f"{where} has an invalid {what}")


def _check_connection(message: hub_pb2.Register, where: str) -> None:
    """Check what a worker proves its identity with, and where others reach it."""
    if message.token and not _MIN_TOKEN <= len(message.token) <= _MAX_TOKEN:
        raise InvalidInput(f"a worker's token must have {_MIN_TOKEN} to {_MAX_TOKEN} characters")
    certificate_bytes = len(message.peer_certificate)
    if message.peer_port > _MAX_PORT or certificate_bytes not in (0, _SHA256_BYTES):
        raise InvalidInput(f"{where} has an invalid peer port or certificate")


def _checked_rate(bytes_per_s: float) -> float:
    if not (math.isfinite(bytes_per_s) and bytes_per_s >= 0):
        raise ProtocolViolation(f"a rate must be at least 0 bytes/s, not {bytes_per_s}")
    return bytes_per_s


def _mode(name: str) -> str:
    return validate_name(name, "power mode") if name else ""
