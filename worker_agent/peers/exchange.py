"""The tensors that agents send each other, as far as all workers of this machine share it."""

from __future__ import annotations

import asyncio
import ssl
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, Overloaded, PermissionDenied
from synergai.runtime.send_queue import SendQueue
from synergai.runtime.tasks import TaskBag
from synergai.wire.tls import server_context
from synergai.wire.work_socket_server import WorkSocketServer
from worker_agent.peers.client import Peers
from worker_agent.peers.held import HELD_S, HeldTensorStore

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.wire.request_codec import Buffer
    from synergai.wire.work_socket import WorkSocket


# A puller sends tokens, each as a message of a work socket. The answer is the token, and behind it
# the tensors if they are held. A connection that begins with another token is closed.

MOST_PULLS: Final = 64
"""Pulls of one connection that wait for others."""


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
        self._server: WorkSocketServer | None = None
        self._senders = TaskBag()

    async def open(self, port: int, certificate: Path | None, key: Path | None) -> None:
        """Open the peer port on all addresses, with TLS if a certificate is given."""
        # Not read again when it is renewed: others know this one by its digest.
        tls = server_context(certificate, key)
        if certificate is not None:
            self.certificate = _digest(certificate)
        self._server = WorkSocketServer(self._serve, tls, setting="--peer-port")
        self.port = await self._server.start("", port)

    async def close(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            await self._server.close()
        await self._senders.close()
        await self.peers.close()

    def _serve(self, token: str, socket: WorkSocket) -> None:
        if self.held.get(token) is None:
            raise PermissionDenied("no tensors are held under this token")
        pulls: SendQueue[str] = SendQueue(MOST_PULLS, on_error=socket.close)

        def on_message(data: Buffer) -> None:
            pulls.put(bytes(data).decode("ascii", "replace"))

        socket.on_message = on_message
        socket.closed.add_done_callback(lambda _: pulls.close())
        pulls.put(token)
        self._senders.start(self._send(pulls, socket))

    async def _send(self, pulls: SendQueue[str], socket: WorkSocket) -> None:
        try:
            while batch := await pulls.get_batch():
                for token in batch:
                    # One after the other: those that wait cost no memory.
                    socket.send((token.encode(), *(self.held.get(token) or ())))
                    async with asyncio.timeout(HELD_S):
                        await socket.drain()
        except (Overloaded, TimeoutError):
            pass  # the other agent asks for more than it reads, or has gone
        finally:
            socket.close()


def _digest(certificate: Path) -> bytes:
    """Return the SHA-256 of the first certificate in a PEM file."""
    try:
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        text = certificate.read_text(encoding="ascii")
        first = text[text.index(begin) : text.index(end) + len(end)]
    except (OSError, ValueError):
        raise InvalidInput(f"{certificate} contains no PEM certificate") from None
    return sha256(ssl.PEM_cert_to_DER_cert(first)).digest()
