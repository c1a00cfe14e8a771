"""Ports to listen on."""

from __future__ import annotations

import socket
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
    """Check that servers which take long to start will be able to listen, as far as one can tell.

    Args:
        addresses: ``HOST:PORT`` each; any port is free if it is 0.

    Raises:
        Unavailable: a port is in use, or a host is not an address of this machine.
    """
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            found = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, *_, target in found:
                socket.create_server(target, family=family).close()
        except OSError:
            raise cannot_listen(address) from None
