"""Network addresses."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from synergai.errors import InvalidInput

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
