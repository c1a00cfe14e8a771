"""gRPC server reflection, for tools such as grpcurl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grpc_reflection.v1alpha import reflection, reflection_pb2

from synergai.wire import rpc

if TYPE_CHECKING:
    from collections.abc import Iterable

    import grpc

_VERSIONS: Final = ("v1", "v1alpha")
"""Wire-compatible versions; the library has stubs for v1alpha only."""


def reflection_handlers(services: Iterable[str]) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return handlers of the service in each version, describing `services`."""
    names = [f"grpc.reflection.{version}.ServerReflection" for version in _VERSIONS]
    servicer = reflection.aio.ReflectionServicer([*services, *names[-1:]])
    handler = rpc.stream(servicer.ServerReflectionInfo, reflection_pb2.ServerReflectionRequest)
    return tuple(rpc.Service(name, {"ServerReflectionInfo": handler}) for name in names)
