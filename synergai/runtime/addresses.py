"""Network addresses."""

from __future__ import annotations

import socket
from errno import EADDRINUSE, EADDRNOTAVAIL
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping


_SCHEMES: Final = ("http://", "https://")


def refuse_url(address: str) -> str:
    """Return `address`, unless it is a URL, which gRPC would take for a misformatted name."""
    for scheme in _SCHEMES:
        if address.startswith(scheme):
            raise InvalidInput(f"{address!r} is not an address: leave out {scheme!r}")
    return address


def check_target(target: str) -> str:
    """Return the address of a server, unless it is a URL or lacks a port; gRPC would assume 443."""
    if ":" not in refuse_url(target).rpartition("]")[2]:
        raise InvalidInput(f"{target!r} has no port: write HOST:PORT, such as {target}:8001")
    return target


def is_loopback(host: str) -> bool:
    """Return whether a host, a name or an IP address, is this machine's loopback interface."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound

_IN_USE: Final = "the port is in use"
_OF_ANOTHER_MACHINE: Final = "the host is not an address of this machine"
_REASONS: Final = {EADDRINUSE: _IN_USE, EADDRNOTAVAIL: _OF_ANOTHER_MACHINE}


def cannot_listen(
    address: str, reason: str = f"{_IN_USE}, or {_OF_ANOTHER_MACHINE}"
) -> Unavailable:
    return Unavailable(f"cannot listen on {address}: {reason}; choose another one")


def check_free(addresses: Mapping[str, str]) -> None:
    """Check, before a slow start, that a server will probably be able to listen.

    Each address has the option that sets it as its key.
    """
    for option, address in addresses.items():
        try:
            sockets = bind(address)
        except Unavailable as error:
            raise Unavailable(f"{error} with {option}") from None
        for each in sockets:
            each.close()


def bind(address: str, backlog: int = 0) -> list[socket.socket]:
    """Return sockets bound to those addresses of a host that this machine has.

    Any wildcard stands for IPv4 and IPv6, as gRPC has it.
    """
    host, _, text = address.rpartition(":")
    host, port = host.strip("[]"), int(text)
    dual = host in _WILDCARDS and socket.has_dualstack_ipv6()
    try:
        found = socket.getaddrinfo(
            "::" if dual else host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        raise cannot_listen(address, _OF_ANOTHER_MACHINE) from None
    sockets: list[socket.socket] = []
    refusal: OSError | None = None
    for family, *_, target in dict.fromkeys(found):
        try:
            bound = _bind(family, (target[0], port, *target[2:]), backlog, dual=dual)
        except OSError as error:
            # On a machine without IPv6, only one of the addresses of localhost can be used.
            if refusal is None or error.errno == EADDRINUSE:
                refusal = error
            continue
        sockets.append(bound)
        port = bound.getsockname()[1]
    if refusal is not None and (refusal.errno == EADDRINUSE or not sockets):
        for each in sockets:
            each.close()
        raise cannot_listen(
            address, _REASONS.get(refusal.errno or 0, str(refusal.strerror).lower())
        )
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
