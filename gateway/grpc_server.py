"""The gRPC server of a port, as the settings choose it, its connections, and what it refuses."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

import grpc

from synergai.errors import NotSupported, SynergaiError
from synergai.runtime.resources import MAX_DESCRIPTORS
from synergai.wire import rpc
from synergai.wire.credentials import server_context, server_credentials
from synergai.wire.native.server import NativeServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AsyncExitStack
    from pathlib import Path

    from gateway.gateway_settings import GatewaySettings
    from synergai.wire.grpcio_server import GrpcioServer
    from synergai.wire.server_call import Interceptor, ServerCall

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
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return connection_limits(descriptors)


_INFERENCE: Final = "/inference.GRPCInferenceService/"

UNSUPPORTED_METHODS: Final[Mapping[str, str]] = {
    **{
        f"{_INFERENCE}{kind}SharedMemory{call}": "shared memory is not supported: send tensors in "
        "raw_input_contents"
        for kind in ("System", "Cuda")
        for call in ("Status", "Register", "Unregister")
    },
    f"{_INFERENCE}TraceSetting": "tracing is not supported: ask a gateway, with the request "
    "parameter 'synergai_timings' or at /metrics",
    f"{_INFERENCE}LogSettings": "log settings cannot change at run time: start the server with "
    "--log-level",
}
"""Unsupported calls of Triton's protocol, with the alternative for each."""
_REFLECTION_VERSIONS: Final = ("v1", "v1alpha")
"""Wire-compatible versions; the library has stubs for v1alpha only."""


def bind_server(
    config: GatewaySettings,
    stack: AsyncExitStack,
    address: str,
    client_authority: Path | None,
    *,
    max_connections: int,
    max_bytes: int,
    on_broken: Callable[[SynergaiError], object],
    interceptor: Interceptor | None = None,
) -> tuple[GrpcServer, str]:
    """Bind a port; return its server, which is not started yet, and the bound address.

    Args:
        stack: releases the port.
        client_authority: authority of the clients' certificates; None if they need none.
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


class RefusingHandler(grpc.GenericRpcHandler):
    """Refuses every call that no handler before it serves.

    Args:
        refusal: returns the error for the client, by the full path of the method.
    """

    def __init__(self, refusal: Callable[[str], SynergaiError]) -> None:
        self._refusal = refusal

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return a stream handler, which suits any kind of call."""
        method = handler_call_details.method

        async def refuse(_requests: object, context: ServerCall) -> NoReturn:
            await rpc.abort(context, self._refusal(method))

        return grpc.stream_stream_rpc_method_handler(refuse)


def unimplemented(texts: Mapping[str, str], default: str) -> RefusingHandler:
    """Return the handler that refuses calls as UNIMPLEMENTED.

    Args:
        texts: error messages by full method path, or by path up to the last slash for a service.
    """

    def refusal(method: str) -> NotSupported:
        service = method[: method.rfind("/") + 1]
        return NotSupported(texts.get(method) or texts.get(service) or default)

    return RefusingHandler(refusal)


def reflection_handlers(services: Iterable[str]) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return handlers of server reflection in each version, describing `services`."""
    # Imported on demand: it costs memory.
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    names = [f"grpc.reflection.{version}.ServerReflection" for version in _REFLECTION_VERSIONS]
    servicer = reflection.aio.ReflectionServicer([*services, *names[-1:]])
    handler = rpc.stream(servicer.ServerReflectionInfo, reflection_pb2.ServerReflectionRequest)
    return tuple(rpc.Service(name, {"ServerReflectionInfo": handler}) for name in names)
