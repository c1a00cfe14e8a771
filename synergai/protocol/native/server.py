"""The server of pygrpc-native; the only module that imports the package.

It serves unary calls. All others reach a server of grpcio that it starts behind itself: it has no
streams of requests, and a stream of responses whose client reads slowly would occupy a thread of
the process. What it does not limit, the front does; see `calls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pygrpc_native.aio import Server

from synergai.protocol.native.calls import decompressing
from synergai.protocol.rpc import Service

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import grpc

_UNSUPPORTED: Final = frozenset(
    {"grpc.max_allowed_incoming_connections", "grpc.max_connection_idle_ms"}
)
"""Options that it refuses; its front has these limits."""


class NativeServer(Server):
    """A server like that of `grpc.aio.server`.

    Args:
        interceptors: as for `grpc.aio.server`.
        options: as for `grpc.aio.server`.
        max_bytes: largest message of a client.
    """

    def __init__(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        options: Sequence[tuple[str, int]],
        max_bytes: int,
    ) -> None:
        supported = [option for option in options if option[0] not in _UNSUPPORTED]
        super().__init__(interceptors=interceptors, options=supported)
        self._max_bytes = max_bytes

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        """Serve the unary methods of services, and have grpcio serve everything else."""
        for handler in generic_rpc_handlers:
            if isinstance(handler, Service):
                methods = {
                    name: decompressing(each, self._max_bytes)
                    for name, each in handler.methods.items()
                }
                unary = {name: each for name, each in methods.items() if each.unary_unary}
                self.add_registered_method_handlers(handler.name, unary)
                super().add_generic_rpc_handlers((Service(handler.name, methods),))
            else:
                super().add_generic_rpc_handlers((handler,))
