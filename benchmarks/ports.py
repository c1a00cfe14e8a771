"""Loopback ports of servers that take a port by its number only."""

from __future__ import annotations

import socket
import time

from demo.local_fleet import reserved_port
from synergai.errors import Unavailable


def free_port() -> int:
    """Return a loopback port that is currently free; another program may take it any time."""
    with reserved_port() as port:
        return port


def wait_for_port(address: str, timeout_s: float = 20.0) -> None:
    """Wait until a server listens on ``host:port``."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=1.0):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise Unavailable(f"no server listens on {address} after {timeout_s:g} s") from None
            time.sleep(0.02)
