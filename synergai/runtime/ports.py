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
        host, _, port = address.rpartition(":")
        try:
            found = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError:
            raise cannot_listen(address) from None
        errors = [error for family, *_, target in found if (error := _error(family, target))]
        # On a machine without IPv6, only one of the addresses of localhost can be used.
        if len(errors) == len(found) or any(each.errno == EADDRINUSE for each in errors):
            raise cannot_listen(address)


def _error(family: int, target: tuple[object, ...]) -> OSError | None:
    """Return the error of listening on an address; None if there is none."""
    try:
        socket.create_server(target, family=family).close()
    except OSError as error:
        return error
    return None
