"""Whether a call comes from this machine."""

from __future__ import annotations

from synergai.errors import PermissionDenied
from synergai.protocol.grpcio.front import peer_address
from synergai.runtime.addresses import is_loopback


def is_local(peer: str) -> bool:
    """Return whether gRPC's name of a peer, such as ``ipv4:127.0.0.1:4711``, is on this host."""
    kind, _, address = peer_address(peer).partition(":")
    return kind == "unix" or is_loopback(address.rpartition(":")[0])


def check_local(peer: str) -> None:
    """Check that a call comes from this machine; one of unknown origin does not.

    Raises:
        PermissionDenied: it does not.
    """
    if not is_local(peer):
        raise PermissionDenied(
            "shared memory is for clients that connect by loopback, on the gateway's machine: send "
            "tensors in the request"
        )
