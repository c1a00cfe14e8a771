"""The client of a call or of an HTTP request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    import asyncio
    import ssl


class Peer:
    """The other end of a TCP connection.

    Attributes:
        host: its IP address; empty if it has left already.
        address: its socket, such as ``ipv4:127.0.0.1:1234``.
        is_encrypted: whether the connection is.
        certificate: its certificate, which TLS has verified, as DER; None without one.
    """

    def __init__(
        self, host: str, port: int, *, is_encrypted: bool = False, certificate: bytes | None = None
    ) -> None:
        self.host = host
        mapped = host.removeprefix("::ffff:")
        self.address = f"ipv6:[{host}]:{port}" if ":" in mapped else f"ipv4:{mapped}:{port}"
        self.is_encrypted = is_encrypted
        self.certificate = certificate

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(self.host)

    def disconnect(self) -> None:
        """Close the connection, if the server can close a single one."""


class SocketPeer(Peer):
    """The other end of a connection of this process's event loop."""

    def __init__(self, transport: asyncio.Transport) -> None:
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        super().__init__(host, port, is_encrypted=tls is not None, certificate=certificate)
        self.transport = transport

    def disconnect(self) -> None:
        """Close the connection at once."""
        self.transport.abort()
