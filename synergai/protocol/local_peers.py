"""Whether a call comes from this machine."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from synergai.errors import PermissionDenied
from synergai.protocol.grpcio.front import peer_address
from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable

_peer: Final[ContextVar[Callable[[], str]]] = ContextVar("peer", default=str)


def is_local(peer: str) -> bool:
    """Return whether gRPC's name of a peer, such as ``ipv4:127.0.0.1:4711``, is on this host."""
    kind, _, address = peer_address(peer).partition(":")
    return kind == "unix" or is_loopback(address.rpartition(":")[0])


def bind_peer(read: Callable[[], str]) -> None:
    """Set what returns the peer of the call that the current task handles."""
    _peer.set(read)


def check_local() -> None:
    """Check that the current call comes from this machine; one of unknown origin does not.

    Raises:
        PermissionDenied: it does not.
    """
    if not is_local(_peer.get()()):
        raise PermissionDenied(
            "shared memory is for clients that connect by loopback, on the gateway's machine: send "
            "tensors in the request"
        )
