"""Identity of an agent, from its connection and its registration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.access.enrolments import sha256
from gateway.access.peer_certificate import peer_certificate
from gateway.access.worker_rules import JoiningWorker
from synergai.errors import InvalidInput, Unauthenticated
from synergai.protocol.grpcio.front import peer_of

if TYPE_CHECKING:
    from synergai.protocol.rpc import Context
    from synergai.v1 import hub_pb2

_MIN_SECRET: Final = 32
_MAX_SECRET: Final = 256


def joining_worker(message: hub_pb2.Register, context: Context) -> JoiningWorker:
    """Return who registers on a connection."""
    peer = peer_of(context)
    if message.secret or message.enrolment_token:
        if not (peer.tls or peer.is_local):
            raise Unauthenticated(
                "a worker's secret is only accepted over TLS or loopback: give the agent --tls-ca"
            )
        for text in filter(None, (message.secret, message.enrolment_token)):
            if not _MIN_SECRET <= len(text) <= _MAX_SECRET:
                raise InvalidInput(
                    f"a worker's secret and token must have {_MIN_SECRET} to {_MAX_SECRET} "
                    "characters"
                )
    certificate = peer_certificate(peer.tls)
    return JoiningWorker(
        id=message.worker_id,
        worker_class=message.worker_class,
        certificate_names=certificate.alternative_names if certificate else frozenset(),
        secret_sha256=sha256(message.secret) if message.secret else b"",
    )
