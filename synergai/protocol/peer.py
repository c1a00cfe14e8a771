"""The client of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    import asyncio
    import ssl


class Peer:
    """The other end of a TCP connection.

    Attributes:
        host: its IP address.
        address: its socket, such as ``ipv4:127.0.0.1:1234``.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.transport = transport
        # None if the client has left already.
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self.host: str = host
        mapped = host.removeprefix("::ffff:")
        self.address = f"ipv6:[{host}]:{port}" if ":" in mapped else f"ipv4:{mapped}:{port}"

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(self.host)
