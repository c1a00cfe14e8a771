"""The peer port, at which other agents pull held tensors.

A puller sends tokens, each as a message of a work socket. The answer is the token, and behind it
the tensors if they are held. A connection that begins with another token is closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from synergai.errors import Overloaded, PermissionDenied
from synergai.protocol.work_socket_server import WorkSocketServer
from synergai.runtime.send_queue import SendQueue
from synergai.runtime.tasks import TaskBag
from worker_agent.peers.held import HELD_S

if TYPE_CHECKING:
    import ssl

    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.work_socket import WorkSocket
    from worker_agent.peers.held import HeldTensorStore

MOST_PULLS: Final = 64
"""Pulls of one connection that wait for others."""


class PeerServer:
    """Serves held tensors to other agents."""

    def __init__(self, held: HeldTensorStore, tls: ssl.SSLContext | None) -> None:
        self._held = held
        self._server = WorkSocketServer(self._serve, tls, setting="--peer-port")
        self._senders = TaskBag()

    async def start(self, port: int) -> int:
        """Listen on all addresses of this machine; return the port."""
        return await self._server.start("", port)

    async def close(self) -> None:
        """Close the port and all connections."""
        await self._server.close()
        await self._senders.close()

    def _serve(self, token: str, socket: WorkSocket) -> None:
        if self._held.get(token) is None:
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
                    socket.send((token.encode(), *(self._held.get(token) or ())))
                    async with asyncio.timeout(HELD_S):
                        await socket.drain()
        except (Overloaded, TimeoutError):
            pass  # the other agent asks for more than it reads, or has gone
        finally:
            socket.close()
