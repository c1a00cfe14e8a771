"""The gRPC server of a port, as the settings choose it, and how many connections it takes."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from synergai.runtime.processes import MAX_DESCRIPTORS
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

RESERVED: Final = 512 + 32 + 128 + 64
"""Descriptors for the HTTP port, for work sockets without a connection id, and for files."""
_FEWEST: Final = 32


class ConnectionLimits(NamedTuple):
    """Most gRPC connections on each port; further ones are closed."""

    clients: int
    agents: int


def connection_limits(descriptors: int) -> ConnectionLimits:
    """Return the limits for a process that may open this number of file descriptors.

    Clients get half of what is not reserved. The connection of an agent takes another one for work.
    """
    half = (descriptors - RESERVED) // 2
    return ConnectionLimits(max(_FEWEST, half), max(_FEWEST, half // 2))


def current_connection_limits() -> ConnectionLimits:
    """Return the limits for this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return connection_limits(descriptors)


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
    ages = config.max_connection_age_s, config.max_connection_age_grace_s
    files = config.tls_cert, config.tls_key, client_authority
    if config.grpc_server == "grpcio":
        # Imported on demand: it costs memory.
        from synergai.wire.grpcio_server import GrpcioServer

        other = GrpcioServer(max_connections, max_bytes, on_broken, interceptor, *ages)
        return other, other.bind(address, server_credentials(*files))
    server = NativeServer(max_connections, max_bytes, interceptor, *ages)
    stack.callback(server.release)
    return server, server.bind(address, server_context(*files, http2=True))
