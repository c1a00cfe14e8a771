"""The gateway with its own worker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from gateway.entry.access.exposure import check_before_start
from gateway.serve.local_hub import LocalHub
from synergai.models.directory import ModelDirectory
from synergai.runtime.files import ready_file
from worker_agent.app import Agent

if TYPE_CHECKING:
    from types import TracebackType

    from gateway.serve.serve_settings import ServeSettings
    from gateway.server import GatewayProcess


class LocalServer:
    """A gateway, and an agent for the engines of this machine, in one process.

    The agent starts first, so that its engine hosts load the first models while this process is
    still importing the gateway.
    """

    def __init__(self, config: ServeSettings) -> None:
        self._config = config
        self._stack = AsyncExitStack()
        self._gateway: GatewayProcess

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(check_before_start, self._config.gateway)
        # An agent may be given its engines later; here, the directory is what is to be served.
        await asyncio.to_thread(ModelDirectory(self._config.worker.models).engines)
        hub = LocalHub()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Agent(self._config.agent, hub))
            gateway = await asyncio.to_thread(_import_gateway)
            # The gateway alone is not ready: it does not know the engines yet.
            # A person who starts a second server is told so at once.
            config = replace(self._config.gateway, ready_file=None, state_wait_s=0.0)
            self._gateway = gateway(config)
            await stack.enter_async_context(self._gateway)
            hub.open(self._gateway)
            await hub.joined.wait()
            stack.enter_context(
                ready_file(
                    self._config.gateway.ready_file,
                    address=self._gateway.address,
                    hub_address=self._gateway.hub_address,
                    http_address=self._gateway.http_address,
                )
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    def stop(self) -> None:
        """Start to shut down; idempotent."""
        self._gateway.stop()

    async def wait_stopped(self) -> None:
        """Wait for `stop` and the end of the gateway."""
        await self._gateway.wait_stopped()


def _import_gateway() -> type[GatewayProcess]:
    from gateway.server import GatewayProcess

    return GatewayProcess
