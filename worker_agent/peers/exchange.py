"""The tensors that agents send each other, as far as all workers of this machine share it."""

from __future__ import annotations

import ssl
from hashlib import sha256
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from synergai.protocol.tls import server_context
from worker_agent.peers.client import Peers
from worker_agent.peers.held import HeldTensorStore
from worker_agent.peers.server import PeerServer

if TYPE_CHECKING:
    from pathlib import Path


class Exchange:
    """Held tensors, the port at which others pull them, and connections to other agents.

    Attributes:
        port: the peer port; 0 without one.
        certificate: SHA-256 of the certificate that it presents; empty without TLS.
    """

    def __init__(self, memory_limit_bytes: int, max_message_bytes: int) -> None:
        self.held = HeldTensorStore(memory_limit_bytes)
        self.peers = Peers(max_message_bytes)
        self.port = 0
        self.certificate = b""
        self._server: PeerServer | None = None

    async def open(self, port: int, certificate: Path | None, key: Path | None) -> None:
        """Open the peer port, with TLS if a certificate is given."""
        # Not read again when it is renewed: others know this one by its digest.
        tls = server_context(certificate, key)
        if certificate is not None:
            self.certificate = _digest(certificate)
        self._server = PeerServer(self.held, tls)
        self.port = await self._server.start(port)

    async def close(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            await self._server.close()
        await self.peers.close()


def _digest(certificate: Path) -> bytes:
    """Return the SHA-256 of the first certificate in a PEM file."""
    try:
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        text = certificate.read_text(encoding="ascii")
        first = text[text.index(begin) : text.index(end) + len(end)]
    except (OSError, ValueError):
        raise InvalidInput(f"{certificate} contains no PEM certificate") from None
    return sha256(ssl.PEM_cert_to_DER_cert(first)).digest()
