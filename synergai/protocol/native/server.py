"""The server of a port: a front whose clients' calls are handled in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.protocol.grpcio.front import Front
from synergai.protocol.native.client import NativeClient
from synergai.protocol.native.handlers import Handlers
from synergai.runtime.ports import bind

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    import grpc

_BACKLOG: Final = 1024


class NativeServer:
    """A gRPC server with the methods of a `ResilientServer`, which no call ends.

    Args:
        interceptors: as for `grpc.aio.server`.
        max_connections: connections at a time; further ones are closed.
        max_bytes: largest message of a client.

    Attributes:
        restarts: how often the server was replaced: never.
    """

    restarts: Final = 0

    def __init__(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        max_connections: int,
        max_bytes: int,
    ) -> None:
        self._handlers = Handlers(interceptors, max_bytes)
        self._max_connections = max_connections
        self._front: Front | None = None

    def bind(self, address: str, tls: ssl.SSLContext | None = None) -> str:
        """Bind to an address and return the bound one; see `ResilientServer.bind`."""
        listeners = bind(address, _BACKLOG, both_families=True)
        host, _, _ = address.rpartition(":")
        self._front = Front(listeners, self._max_connections, tls, self._make_client)
        return f"{host}:{listeners[0].getsockname()[1]}"

    async def start(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Accept calls for these handlers."""
        if self._front is None:
            raise RuntimeError("the server is not bound")
        self._handlers.add(handlers)
        self._front.start()

    def retire(self) -> None:
        """Ask clients to begin no further calls, and close connections without any. Idempotent."""
        if self._front is not None:
            self._front.retire()

    async def stop(self, grace: float) -> None:
        """Stop once all calls have been answered; end those that take longer than `grace` seconds.

        Clients see calls that were ended as UNAVAILABLE.
        """
        if self._front is not None:
            self._front.retire()
            await self._front.drain(grace)
        self.release()
        await self._handlers.tasks.close()

    def release(self) -> None:
        """Release the port, which `stop` does as well. Idempotent."""
        if self._front is not None:
            self._front.close()

    def _make_client(self, front: Front, address: str) -> NativeClient:
        return NativeClient(front, address, self._handlers)
