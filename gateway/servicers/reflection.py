"""gRPC server reflection, with which tools such as grpcurl find out what a port serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from synergai.protocol import rpc

if TYPE_CHECKING:
    from collections.abc import Iterable

_VERSIONS: Final = ("v1", "v1alpha")
"""Their messages are the same on the wire; the library only has the older name."""


def reflection_handlers(services: Iterable[str]) -> tuple[grpc.GenericRpcHandler, ...]:
    """The service under each of its names, describing `services` and what they use."""
    names = [f"grpc.reflection.{version}.ServerReflection" for version in _VERSIONS]
    servicer = reflection.aio.ReflectionServicer([*services, *names[-1:]])
    handler = rpc.stream(servicer.ServerReflectionInfo, reflection_pb2.ServerReflectionRequest)
    return tuple(
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        for name in names
    )
