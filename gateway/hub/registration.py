"""Who registers as an agent, and validation of what it registers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from gateway.entry.access.enrolments import sha256
from gateway.entry.access.peer_certificate import peer_certificate
from gateway.entry.access.worker_rules import JoiningWorker
from gateway.fleet.agent_validation import (
    ProtocolViolation,
    checked_rate,
    checked_seconds,
    engine_from_agent,
    printable_detail,
)
from gateway.fleet.worker import ConnectedWorker, WorkerPower
from synergai.domain import Configuration, WorkerClass, WorkerId
from synergai.errors import InvalidInput, NotSupported, Unauthenticated
from synergai.names import validate_name
from synergai.runtime.send_queue import SendQueue
from synergai.wire.converters import (
    configuration_from_proto,
    session_from_proto,
    unusable_session_from_proto,
)
from synergai.wire.hub import HUB_VERSION
from synergai.wire.work_transport import SentOver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.fleet.worker import Order
    from synergai.domain import Engine, Session
    from synergai.v1 import common_pb2, hub_pb2
    from synergai.wire.server_call import ServerCall

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
_MAX_PORT: Final = 65535
_MAX_PEERS: Final = 1024
_SHA256_BYTES: Final = 32
_MIN_SECRET: Final = 32
_MAX_SECRET: Final = 256

_log = logging.getLogger(__name__)


def worker_from_registration(message: hub_pb2.Register, now: float) -> ConnectedWorker:
    """Return the worker of a registration; it has no work stream yet."""
    if message.protocol_version != HUB_VERSION:
        raise NotSupported(
            f"this gateway speaks version {HUB_VERSION} of the hub protocol, the agent "
            f"version {message.protocol_version}: install the same release on both"
        )
    worker_id = WorkerId(validate_name(message.worker_id, "worker id"))
    where = f"worker {worker_id!r}"
    _check_sizes(message, where)
    mode = validate_name(message.power_mode, "power mode") if message.power_mode else ""
    engines = {}
    for engine_message in message.engines:
        engine = engine_from_agent(engine_message)
        if engine.name in engines:
            raise InvalidInput(f"{where} has engine {engine.name!r} twice")
        engines[engine.name] = engine
    sessions = {session_from_proto(session) for session in message.sessions}
    for session in sessions:
        if session.engine not in engines:
            raise InvalidInput(f"{where} has a session of {session.engine!r}, but no such engine")
    for session in [each for each in sessions if lacks_variant(engines[each.engine], each)]:
        _log.warning("%s: a loaded session is ignored: %s", where, lacking_text(session))
        sessions.discard(session)
    unusable = unusable_sessions(message.unusable)
    configurations = tuple(dict.fromkeys(map(configuration_from_proto, message.configurations)))
    for configuration in configurations:
        if configuration.variant:
            raise InvalidInput(
                f"{where} has the configuration {configuration}: a worker's configurations are "
                "for all of its engines, and name no variant"
            )
    orders: SendQueue[Order] = SendQueue(0)
    orders.close()
    return ConnectedWorker(
        id=worker_id,
        worker_class=WorkerClass(validate_name(message.worker_class, "worker class")),
        agent_version=message.agent_version,
        cores=message.cores,
        memory_bytes=message.memory_bytes,
        configurations=configurations or (Configuration(),),
        orders=orders,
        last_seen_at=now,
        instance=message.instance,
        backends=frozenset(validate_name(each, "backend name") for each in message.backends),
        labels=tuple(validate_name(each, "label") for each in message.labels),
        memory_limit_bytes=message.memory_limit_bytes,
        memory_enforcement=message.memory_enforcement,
        power=WorkerPower(mode=mode, meter=message.meter),
        offered=engines,
        engines=engines.copy(),
        sessions=sessions,
        unusable=unusable,
        session_budget_bytes=message.session_budget_bytes,
        session_bytes={
            session: each.bytes
            for each in message.session_memory
            if (session := session_from_proto(each.session)).engine in engines
        },
        pinned=frozenset(map(session_from_proto, message.pinned)),
        engine_cores=message.engine_cores,
    )


def _check_sizes(message: hub_pb2.Register, where: str) -> None:
    """Check the lengths of the lists and of the texts for people."""
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


def lacks_variant(engine: Engine, session: Session) -> bool:
    """Return whether a session has a variant that its engine, if described, does not have.

    An agent may load one that has just been removed from its folder, so this is no violation.
    """
    variant = session.configuration.variant
    return bool(variant) and not engine.fault and not engine.has_variant(variant)


def lacking_text(session: Session) -> str:
    """Return why a session that `lacks_variant` is not used."""
    return f"engine {session.engine!r} has no variant {session.configuration.variant!r} there"


def unusable_sessions(messages: Iterable[common_pb2.UnusableSession]) -> dict[Session, str]:
    """Return the sessions that a worker cannot run, and why."""
    found = map(unusable_session_from_proto, messages)
    return {each.session: printable_detail(each.reason) for each in found}


def peer_address(message: hub_pb2.Register, context: ServerCall | None) -> str:
    """Return where agents pull tensors from one that registers; empty if they cannot.

    The host is that from which it connects. One on this machine has the address of this gateway,
    which each agent knows as its own.
    """
    if not message.peer_port:
        return ""
    if message.peer_port > _MAX_PORT or len(message.peer_certificate) not in (0, _SHA256_BYTES):
        raise InvalidInput(f"worker {message.worker_id!r} has an invalid peer port or certificate")
    peer = None if context is None else context.peer
    host = "" if peer is None or peer.is_local else peer.host
    return f"[{host}]:{message.peer_port}" if ":" in host else f"{host}:{message.peer_port}"


def peer_links(message: hub_pb2.Heartbeat) -> dict[str, SentOver]:
    """Return the links from other workers that a worker has learned."""
    if len(message.peers) > _MAX_PEERS:
        raise ProtocolViolation(f"a worker reports at most {_MAX_PEERS} links")
    return {
        validate_name(each.worker_id, "worker id"): SentOver(
            checked_rate(each.bytes_per_s), checked_seconds(each.round_trip_s, "a round trip")
        )
        for each in message.peers
    }


def joining_worker(message: hub_pb2.Register, context: ServerCall) -> JoiningWorker:
    """Return who registers on a connection."""
    peer = context.peer
    if message.secret or message.enrolment_token:
        if not (peer.is_encrypted or peer.is_local):
            raise Unauthenticated(
                "a worker's secret is only accepted over TLS or loopback: give the agent --tls-ca"
            )
        for text in filter(None, (message.secret, message.enrolment_token)):
            if not _MIN_SECRET <= len(text) <= _MAX_SECRET:
                raise InvalidInput(
                    f"a worker's secret and token must have {_MIN_SECRET} to {_MAX_SECRET} "
                    "characters"
                )
    certificate = peer_certificate(peer.certificate)
    return JoiningWorker(
        id=message.worker_id,
        worker_class=message.worker_class,
        certificate_names=certificate.alternative_names if certificate else frozenset(),
        secret_sha256=sha256(message.secret) if message.secret else b"",
    )
