"""Ports to listen on."""

from __future__ import annotations

import socket
from errno import EADDRINUSE
from typing import TYPE_CHECKING, Final

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound


def cannot_listen(address: str) -> Unavailable:
    """Return the error for an address that a server cannot listen on."""
    return Unavailable(
        f"cannot listen on {address}: the port is in use, or the host is not an address of this "
        "machine; choose another one"
    )


def check_free(addresses: Iterable[str]) -> None:
    """Check, before a slow start, that a server will probably be able to listen."""
    for address in addresses:
        for each in bind(address):
            each.close()


def bind(address: str, backlog: int = 0, *, both_families: bool = False) -> list[socket.socket]:
    """Return sockets bound to those addresses of a host that this machine has.

    If `both_families`, any wildcard stands for IPv4 and IPv6, as gRPC has it.
    """
    host, _, text = address.rpartition(":")
    host, port = host.strip("[]"), int(text)
    dual = both_families and host in _WILDCARDS and socket.has_dualstack_ipv6()
    try:
        found = socket.getaddrinfo(
            "::" if dual else host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        raise cannot_listen(address) from None
    sockets: list[socket.socket] = []
    in_use = False
    for family, *_, target in dict.fromkeys(found):
        try:
            bound = _bind(family, (target[0], port, *target[2:]), backlog, dual=dual)
        except OSError as error:
            # On a machine without IPv6, only one of the addresses of localhost can be used.
            in_use |= error.errno == EADDRINUSE
            continue
        sockets.append(bound)
        port = bound.getsockname()[1]
    if in_use or not sockets:
        for each in sockets:
            each.close()
        raise cannot_listen(address)
    return sockets


def _bind(family: int, target: tuple[object, ...], backlog: int, *, dual: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        bound.bind(target)
        if backlog:
            bound.listen(backlog)
    except OSError:
        bound.close()
        raise
    return bound
