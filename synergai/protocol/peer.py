"""The client of a connection: whether it is on this machine, and which of its users it is."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from synergai.errors import PermissionDenied
from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Iterator

_TABLES: Final = Path("/proc/net")
_ESTABLISHED: Final = "01"
"""State of a connection that a process holds; of others, the system shows no user."""
_UNKNOWN_USER: Final = 65534
"""What a process in a user namespace sees for all users that the namespace lacks."""


class Peer:
    """The other end of a TCP connection; `host` is its address."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.transport = transport
        # None if the client has left already.
        name = transport.get_extra_info("peername") or ("", 0)
        self.host: str = name[0]
        self._port: int = name[1]

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(self.host)

    @property
    def user(self) -> int:
        """The id of the user whose process on this machine it is."""
        if not self.is_local:
            raise PermissionDenied(
                "shared memory is for clients that connect by loopback, on the gateway's machine: "
                "send tensors in the request"
            )
        if self._user is None:
            raise PermissionDenied("cannot tell which user's shared memory this client may use")
        return self._user

    @cached_property
    def _user(self) -> int | None:
        """The user, looked up once: the system's tables are long."""
        own_host, own_port = self.transport.get_extra_info("sockname")[:2]
        ends = (self.host, self._port), (own_host, own_port)
        users = {user for user in _users_between(*ends) if user != _UNKNOWN_USER}
        # Checked last: while it is open, no other connection has the same two ends.
        return users.pop() if users and self._is_open() else None

    def _is_open(self) -> bool:
        if self.transport.is_closing():
            return False
        # The name that uvloop returns is of when the connection was made.
        descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
        with socket.socket(fileno=descriptor) as own, suppress(OSError):
            own.getpeername()
            return True
        return False


def _users_between(client: tuple[str, int], server: tuple[str, int]) -> Iterator[int]:
    """Yield the user of the client's end of a connection within this machine, if it is open."""
    wanted = set(zip(_forms(*client), _forms(*server), strict=True))
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), (_TABLES / table).open(encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if (fields[1], fields[2]) in wanted and fields[3] == _ESTABLISHED:
                    yield int(fields[7])


def _forms(host: str, port: int) -> list[str]:
    """Return how the tables may write an address: as itself, and one of IPv4 mapped to IPv6."""
    short = host.removeprefix("::ffff:")
    if ":" in short:
        forms = [socket.inet_pton(socket.AF_INET6, short)]
    else:
        address = socket.inet_aton(short)
        forms = [address, bytes(10) + b"\xff\xff" + address]
    return [f"{_hex(form)}:{port:04X}" for form in forms]


def _hex(address: bytes) -> str:
    """Return an address as in ``/proc/net/tcp``: words in the machine's byte order."""
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", address))
