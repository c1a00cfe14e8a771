"""The gateway with a worker of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.serve.local_hub import LocalHub
from gateway.server import GatewayProcess
from worker_agent.app import Agent

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from gateway.serve.settings import ServeSettings


class LocalServer(GatewayProcess):
    """A gateway, and an agent for the engines of this machine, in one process.

    The agent ends after the requests in flight have been drained and before the gateway's hub.
    """

    def __init__(self, settings: ServeSettings) -> None:
        super().__init__(settings)
        self._agent_config = settings.to_agent_config()

    async def _start(self, stack: AsyncExitStack) -> None:
        await super()._start(stack)
        hub = LocalHub(self._app.hub, self._app.work_streams)
        await stack.enter_async_context(Agent(self._agent_config, hub))
