"""The agent's own Open Inference Protocol server, for use without a gateway."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import grpc

from synergai.protocol import rpc
from synergai.protocol.oip_server.models import ModelServicer
from synergai.protocol.oip_server.servicer import InferenceServicer
from synergai.protocol.oip_server.unimplemented import UNSUPPORTED_METHODS, UnimplementedHandler
from synergai.protocol.resilient_server import ResilientServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.errors import InternalError
    from synergai.runtime.clock import Clock
    from worker_agent.standalone.backend import AgentBackend

_GRACE_S: Final = 1.0


class StandaloneServer:
    """The agent's own server of the Open Inference Protocol.

    Args:
        backend: runs the requests.
        clock: clock of the backend's statistics.
        on_failure: called once if the server cannot be kept running.
    """

    def __init__(
        self,
        backend: AgentBackend,
        clock: Clock,
        on_failure: Callable[[InternalError], None],
    ) -> None:
        self._backend = backend
        self._on_failure = on_failure
        # Clients may rely on the order, in which requests run anyway.
        self._inference = InferenceServicer(backend, "synergai-agent", ordered_streams=True)
        self._models = ModelServicer(backend, clock)
        self._server: ResilientServer | None = None

    async def start(self, address: str, max_message_bytes: int) -> str:
        """Listen on `address`; return it with the actual port.

        Raises:
            Unavailable: the port is in use.
        """
        make = partial(grpc.aio.server, options=rpc.server_options(max_message_bytes))
        server = ResilientServer(make, self._on_failure)
        bound = server.bind(address)
        await server.start(
            (
                self._inference.handler(),
                self._models.handler(),
                UnimplementedHandler(UNSUPPORTED_METHODS, "an agent does not serve the method"),
            )
        )
        self._server = server
        return bound

    def drain(self) -> None:
        """Refuse new requests."""
        self._backend.drain()

    async def stop(self) -> None:
        """Cancel outstanding requests and stop listening."""
        self._backend.drain()
        self._inference.stop_streams()
        if self._server is not None:
            await self._server.stop(_GRACE_S)
        await self._backend.close()
