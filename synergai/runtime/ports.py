"""Ports to listen on."""

from __future__ import annotations

import socket
from errno import EADDRINUSE
from typing import TYPE_CHECKING

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable


def cannot_listen(address: str) -> Unavailable:
    """Return the error for an address that a server cannot listen on."""
    return Unavailable(
        f"cannot listen on {address}: the port is in use, or the host is not an address of this "
        "machine; choose another one"
    )


def check_free(addresses: Iterable[str]) -> None:
    """Check, before a slow start, that a server will probably be able to listen.

    Args:
        addresses: ``HOST:PORT`` each; any port is free if it is 0.

    Raises:
        Unavailable: a port is in use, or a host is not an address of this machine.
    """
    for address in addresses:
        for each in bind(address):
            each.close()


def bind(address: str, backlog: int = 0) -> list[socket.socket]:
    """Return sockets bound to those addresses of a host that this machine has.

    Args:
        address: ``HOST:PORT``; port 0 chooses a free port for each.
        backlog: connections that may wait to be accepted; 0 if the sockets do not listen.

    Raises:
        Unavailable: the port is in use, or the host is not an address of this machine.
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        raise cannot_listen(address) from None
    sockets: list[socket.socket] = []
    in_use = False
    for family, *_, target in dict.fromkeys(found):
        try:
            sockets.append(_bind(family, target, backlog))
        except OSError as error:
            # On a machine without IPv6, only one of the addresses of localhost can be used.
            in_use |= error.errno == EADDRINUSE
    if in_use or not sockets:
        for each in sockets:
            each.close()
        raise cannot_listen(address)
    return sockets


def _bind(family: int, target: tuple[object, ...], backlog: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(target)
        if backlog:
            bound.listen(backlog)
    except OSError:
        bound.close()
        raise
    return bound
