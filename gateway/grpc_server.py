"""The gRPC server of a port, as the settings choose it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from synergai.protocol.native.server import NativeServer
from synergai.protocol.tls import server_context, server_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    import grpc

    from gateway.gateway_settings import GatewaySettings
    from synergai.errors import SynergaiError
    from synergai.protocol.server_call import Interceptor


class GrpcServer(Protocol):
    """A server of a port that is bound."""

    def start(self, handlers: Sequence[grpc.GenericRpcHandler], /) -> None:
        """Accept calls for these handlers; of several that suit a call, the first one is used."""

    def retire(self) -> None:
        """Accept no more connections, and let clients begin no further calls. Idempotent."""

    async def stop(self, grace: float, /) -> None:
        """Stop once all calls have been answered; end those that take longer than `grace` s."""


def bind_server(
    config: GatewaySettings,
    address: str,
    client_authority: Path | None,
    stack: AsyncExitStack,
    *,
    max_connections: int,
    max_bytes: int,
    on_broken: Callable[[SynergaiError], object],
    interceptor: Interceptor | None = None,
) -> tuple[GrpcServer, str]:
    """Bind a port; return its server, which is not started yet, and the bound address.

    Args:
        client_authority: authority of the clients' certificates; None if they need none.
        stack: releases the port.
        max_connections: connections at a time; further ones are closed.
        max_bytes: largest message of a client.
        on_broken: called if the server can accept no more calls.
        interceptor: may replace the handler of a call, or end the call.
    """
    files = config.tls_cert, config.tls_key, client_authority
    if config.grpc_server == "grpcio":
        # Imported on demand: it costs memory.
        from synergai.protocol.grpcio_server import GrpcioServer

        other = GrpcioServer(max_connections, max_bytes, on_broken, interceptor)
        return other, other.bind(address, server_credentials(*files))
    server = NativeServer(max_connections, max_bytes, interceptor)
    stack.callback(server.release)
    return server, server.bind(address, server_context(*files, http2=True))
