"""Who registers as an agent: the worker, its identity, and where others reach it."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from gateway.entry.access.enrolments import sha256
from gateway.entry.access.peer_certificate import peer_certificate
from gateway.entry.access.worker_rules import JoiningWorker
from gateway.fleet.worker import ConnectedWorker, WorkerPower
from synergai.errors import Unauthenticated
from synergai.runtime.send_queue import SendQueue
from synergai.wire.agent_messages import Registration

if TYPE_CHECKING:
    from gateway.fleet.worker import Order
    from synergai.domain import Engine, Session
    from synergai.wire.server_call import ServerCall

_log = logging.getLogger(__name__)

_ALIKE: Final = (
    {field.name for field in fields(ConnectedWorker)} & {*Registration.__struct_fields__}
) - {"engines", "sessions"}
"""Fields of a worker that are those of its registration."""


def worker_from_registration(
    registration: Registration, context: ServerCall | None, now: float
) -> ConnectedWorker:
    """Return the worker of a registration; it has no work stream yet."""
    engines, sessions = dict(registration.engines), set(registration.sessions)
    for session in registration.sessions:
        if lacks_variant(engines[session.engine], session):
            where = f"worker {registration.worker_id!r}"
            _log.warning("%s: a loaded session is ignored: %s", where, lacking_text(session))
            sessions.discard(session)
    orders: SendQueue[Order] = SendQueue(0)
    orders.close()
    alike = {name: getattr(registration, name) for name in _ALIKE}
    return ConnectedWorker(
        id=registration.worker_id,
        orders=orders,
        last_seen_at=now,
        local=context is None,
        power=WorkerPower(mode=registration.power_mode, meter=registration.meter),
        offered=engines,
        engines=engines.copy(),
        sessions=sessions,
        peer_address=_peer_address(registration.peer_port, context),
        **alike,
    )


def lacks_variant(engine: Engine, session: Session) -> bool:
    """Return whether a session has a variant that its engine, if described, does not have.

    An agent may load one that has just been removed from its folder, so this is no violation.
    """
    variant = session.configuration.variant
    return bool(variant) and not engine.fault and not engine.has_variant(variant)


def lacking_text(session: Session) -> str:
    """Return why a session that `lacks_variant` is not used."""
    return f"engine {session.engine!r} has no variant {session.configuration.variant!r} there"


def joining_worker(registration: Registration, context: ServerCall) -> JoiningWorker:
    """Return who registers on a connection."""
    peer = context.peer
    has_secret = bool(registration.secret or registration.enrolment_token)
    if has_secret and not (peer.is_encrypted or peer.is_local):
        raise Unauthenticated(
            "a worker's secret is only accepted over TLS or loopback: give the agent --tls-ca"
        )
    certificate = peer_certificate(peer.certificate)
    return JoiningWorker(
        id=registration.worker_id,
        worker_class=registration.worker_class,
        certificate_names=certificate.alternative_names if certificate else frozenset(),
        secret_sha256=sha256(registration.secret) if registration.secret else b"",
    )


def _peer_address(port: int, context: ServerCall | None) -> str:
    """Return where agents pull tensors from one that registers; empty if they cannot.

    The host is that from which it connects. One on this machine has the address of this gateway,
    which each agent knows as its own.
    """
    if not port:
        return ""
    peer = None if context is None else context.peer
    host = "" if peer is None or peer.is_local else peer.host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
