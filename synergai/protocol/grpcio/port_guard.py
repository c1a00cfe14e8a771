"""A reservation of a port for the servers of this process, and sockets that listen on one.

While a gRPC server is replaced, no server listens on its port for a moment. Another socket of the
machine could take it: a connection gets any free port, and so does a server on port 0. A second
socket therefore stays bound to the port and never listens. Linux binds several sockets to a port if
all of them have SO_REUSEADDR, as those of gRPC have, and none listens. The guard has this option
only while a server of this process binds, so nothing else can bind meanwhile either.

Remove `PortGuard` together with `resilient_server`, and `listen` together with `front`.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    _Address = tuple[str, int] | tuple[str, int, int, int]

_BACKLOG: Final = 1024
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound


class PortGuard:
    """Reserves the port of an address until it is closed.

    Addresses that cannot be bound are left for the server to report.

    Args:
        address: ``HOST:PORT``; port 0 chooses a free one.

    Attributes:
        address: the address with the chosen port.
    """

    def __init__(self, address: str) -> None:
        host, _, port_text = address.rpartition(":")
        port = int(port_text)
        self._sockets: list[socket.socket] = []
        for family, sockaddr in _resolve(host.strip("[]")):
            guard = _bind(family, (sockaddr[0], port, *sockaddr[2:]))
            if guard is not None:
                self._sockets.append(guard)
                port = guard.getsockname()[1]
        self.address = f"{host}:{port}"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let a server bind the port inside the context; it has to listen at once."""
        self._share(on=True)
        try:
            yield
        finally:
            self._share(on=False)

    def take(self) -> list[socket.socket]:
        """Return the bound sockets, which the caller owns then."""
        sockets, self._sockets = self._sockets, []
        return sockets

    def close(self) -> None:
        """Release the port. Idempotent."""
        while self._sockets:
            self._sockets.pop().close()

    def _share(self, *, on: bool) -> None:
        for guard in self._sockets:
            guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, on)


def listen(address: str) -> tuple[list[socket.socket], str]:
    """Return sockets that listen on an address, and the address with the port that was chosen.

    Args:
        address: ``HOST:PORT``; port 0 chooses a free one.

    Raises:
        OSError: the port is in use, or the host is not an address of this machine.
    """
    guard = PortGuard(address)
    sockets = guard.take()
    if not sockets:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    try:
        for each in sockets:
            each.listen(_BACKLOG)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets, guard.address


def _resolve(host: str) -> list[tuple[int, _Address]]:
    """Return the addresses of a host that gRPC would bind; none if it has none."""
    if host in _WILDCARDS:
        # gRPC listens on both families, whichever wildcard it is given.
        both = socket.has_dualstack_ipv6()
        return [(socket.AF_INET6, ("::", 0, 0, 0)) if both else (socket.AF_INET, ("", 0))]
    try:
        found = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        return []
    return [(family, (str(sockaddr[0]), 0, *sockaddr[2:])) for family, _, _, _, sockaddr in found]


def _bind(family: int, sockaddr: _Address) -> socket.socket | None:
    guard = socket.socket(family, socket.SOCK_STREAM)
    with suppress(OSError):
        guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            guard.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, sockaddr[0] != "::")
        guard.bind(sockaddr)
        return guard
    guard.close()
    return None
