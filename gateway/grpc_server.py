"""The gRPC server of a port, as the settings choose it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from synergai.wire.native.server import NativeServer
from synergai.wire.tls import server_context, server_credentials

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack
    from pathlib import Path

    from gateway.gateway_settings import GatewaySettings
    from synergai.errors import SynergaiError
    from synergai.wire.grpcio_server import GrpcioServer
    from synergai.wire.server_call import Interceptor

    GrpcServer: TypeAlias = NativeServer | GrpcioServer


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
        on_broken: called if the server can accept no more calls.
    """
    files = config.tls_cert, config.tls_key, client_authority
    if config.grpc_server == "grpcio":
        # Imported on demand: it costs memory.
        from synergai.wire.grpcio_server import GrpcioServer

        other = GrpcioServer(
            max_connections, max_bytes, on_broken, interceptor, config.max_connection_age_s
        )
        return other, other.bind(address, server_credentials(*files))
    server = NativeServer(max_connections, max_bytes, interceptor, config.max_connection_age_s)
    stack.callback(server.release)
    return server, server.bind(address, server_context(*files, http2=True))
