"""Ending of connections that gRPC owns and has no means to close.

Remove it once grpc.aio can close a connection.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote


def shut_down_connection(peer: str) -> bool:
    """Shut down the connection to a peer, so that the library that owns it closes it.

    gRPC keeps what it sends to a client that does not read, even if the call is cancelled, until
    the connection ends. A client that uses one port for connections to several ports of this
    process loses all of them.

    Args:
        peer: the peer as gRPC writes it, such as ``ipv4:127.0.0.1:1234``.

    Returns:
        Whether there was a connection to this peer.
    """
    _, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    found: dict[int, socket.socket] = {}
    try:
        for entry in list(Path("/proc/self/fd").iterdir()):
            if (connection := _socket(int(entry.name))) is None:
                continue
            inode = os.fstat(connection.fileno()).st_ino  # one may be found twice: our duplicate
            if inode not in found and _peer_of(connection) == (host.strip("[]"), port):
                found[inode] = connection
            else:
                connection.close()
        for connection in found.values():
            with suppress(OSError):  # the client may have gone
                connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    finally:
        for connection in found.values():
            connection.close()
    return bool(found)


def _socket(fd: int) -> socket.socket | None:
    """Return a duplicate of the socket with this descriptor; None if it is no socket."""
    try:
        return socket.socket(fileno=os.dup(fd)) if stat.S_ISSOCK(os.fstat(fd).st_mode) else None
    except OSError:
        return None


def _peer_of(connection: socket.socket) -> tuple[str, str] | None:
    try:
        address = connection.getpeername()
    except OSError:
        return None
    if not isinstance(address, tuple):
        return None
    # gRPC's sockets are of IPv6, also for clients of IPv4.
    return address[0].removeprefix("::ffff:"), str(address[1])
