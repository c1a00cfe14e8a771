from __future__ import annotations

from typing import TypeAlias

from synergai.errors import SynergaiError
from synergai.wire.grpcio_server import GrpcioServer
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES
from synergai.wire.native.server import NativeServer

AnyServer: TypeAlias = NativeServer | GrpcioServer

SERVERS = ("native", "grpcio")


def new_server(kind: str, max_connections: int = 100) -> AnyServer:
    """Return a server that is not bound yet."""
    if kind == "grpcio":
        return GrpcioServer(max_connections, DEFAULT_MAX_MESSAGE_BYTES, _fail)
    return NativeServer(max_connections, DEFAULT_MAX_MESSAGE_BYTES)


def _fail(error: SynergaiError) -> None:
    raise error
