"""The client of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    import asyncio
    import ssl


class Peer:
    """The other end of a TCP connection; `host` is its address."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.transport = transport
        # None if the client has left already.
        name = transport.get_extra_info("peername") or ("",)
        self.host: str = name[0]

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(self.host)
