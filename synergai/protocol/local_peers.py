"""Whether a call comes from this machine, and from which of its users."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from synergai.errors import PermissionDenied
from synergai.protocol.grpcio.front import peer_address
from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

_TABLES: Final = Path("/proc/net")
_ESTABLISHED: Final = "01"
"""State of a connection that a process holds; of others, the system shows no user."""
_UNKNOWN_USER: Final = 65534
"""What a process in a user namespace sees for all users that the namespace lacks."""


def is_local(peer: str) -> bool:
    """Return whether gRPC's name of a peer, such as ``ipv4:127.0.0.1:4711``, is on this host."""
    kind, _, address = peer_address(peer).partition(":")
    return kind == "unix" or is_loopback(address.rpartition(":")[0])


def local_user(peer: str) -> int:
    """Return the id of the user whose process on this machine made a call.

    Raises:
        PermissionDenied: the call comes from elsewhere, or the system does not say whose it is.
    """
    _, _, address = peer_address(peer).partition(":")
    host, _, port = address.rpartition(":")
    if not is_local(peer):
        raise PermissionDenied(
            "shared memory is for clients that connect by loopback, on the gateway's machine: send "
            "tensors in the request"
        )
    users = set(_users_of(host.strip("[]"), int(port)))
    # Connections of several users to different ports may have one address.
    if len(users) != 1 or _UNKNOWN_USER in users:
        raise PermissionDenied("cannot tell which user's shared memory this client may use")
    return users.pop()


def _users_of(host: str, port: int) -> Iterator[int]:
    """Yield the user of each open connection of this machine from an address."""
    if ":" in host:
        forms = [socket.inet_pton(socket.AF_INET6, host)]
    else:
        short = socket.inet_aton(host)
        forms = [short, bytes(10) + b"\xff\xff" + short]
    wanted = {f"{_hex(form)}:{port:04X}" for form in forms}
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), (_TABLES / table).open(encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if fields[1] in wanted and fields[3] == _ESTABLISHED:
                    yield int(fields[7])


def _hex(address: bytes) -> str:
    """Return an address as in ``/proc/net/tcp``: words in the machine's byte order."""
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", address))
