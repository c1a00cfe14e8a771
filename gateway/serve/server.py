"""The gateway with its own worker, linked by calls instead of sockets."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from gateway.entry.access.exposure import check_exposure
from synergai.errors import SynergaiError, Unavailable
from synergai.models.directory import ModelDirectory
from synergai.runtime.files import ready_file
from synergai.v1 import hub_pb2
from synergai.wire.work_messages import Orders, decode_orders
from synergai.wire.work_transport import WorkPipe, open_pipe
from worker_agent.app import Agent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
    from types import TracebackType

    from gateway.app import AgentComponents
    from gateway.serve.serve_settings import ServeSettings
    from gateway.server import Gateway, GatewayProcess
    from synergai.v1 import store_pb2


class LocalHub:
    """The hub of a gateway in this process; implements the agent's `HubLink`.

    Connecting waits until the gateway has started. Once it stops, so does the process: a
    connection that ends then is not reported, which keeps the agent from connecting again.
    """

    gateways = 1

    def __init__(self) -> None:
        self.target = ""
        self.joined = asyncio.Event()
        self._gateway: asyncio.Future[Gateway] = asyncio.get_running_loop().create_future()

    def open(self, gateway: Gateway) -> None:
        """Let the agent connect to `gateway`, which has started."""
        self.target = gateway.hub_address
        self._gateway.set_result(gateway)

    async def find_other(self) -> str:
        """Return nothing: there is no other gateway."""
        return ""

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[LocalConnection, None]:
        gateway = await asyncio.shield(self._gateway)
        connection = LocalConnection(gateway.app.agents, self.joined.set)
        async with aclosing(connection.responses):
            try:
                yield connection
            except SynergaiError:
                if gateway.stopping:
                    await asyncio.Event().wait()
                raise


class LocalConnection:
    """A connection to a hub in this process; implements the agent's `HubConnection`."""

    def __init__(self, agents: AgentComponents, on_joined: Callable[[], None]) -> None:
        self._agents = agents
        self._on_joined = on_joined
        # Bounded by the agent's send queue, which waits for each write.
        self._requests: asyncio.Queue[hub_pb2.AgentControl] = asyncio.Queue(1)
        self.responses = agents.hub.control(self._receive(), None)

    def authenticate(self, register: hub_pb2.Register) -> None:
        """Do nothing: the gateway admits the agent of its own process."""

    async def read(self) -> hub_pb2.GatewayControl:
        try:
            return await anext(self.responses)
        except StopAsyncIteration:
            raise Unavailable("the gateway closed the connection") from None

    async def write(self, data: bytes) -> None:
        await self._requests.put(hub_pb2.AgentControl.FromString(data))

    async def open_work(
        self, registered: hub_pb2.Registered, on_orders: Callable[[Orders], None]
    ) -> WorkPipe:
        agent_end, gateway_end = open_pipe()
        agent_end.listen(decode_orders, on_orders)
        self._agents.work_streams.serve(registered.session, gateway_end)
        self._on_joined()
        return agent_end

    async def fetch(self, session: str, sha256: str, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield content of the gateway's store, from an offset to its end."""
        request = hub_pb2.FetchRequest(session=session, sha256=sha256, offset=offset)
        async with aclosing(self._agents.placements.fetch(request)) as chunks:
            async for chunk in chunks:
                yield chunk.data

    async def send(
        self,
        head: hub_pb2.EngineChunk,
        read: Callable[[Iterable[store_pb2.MissingContent]], AsyncGenerator[bytes, None]],
    ) -> None:
        """Send an engine to the gateway's store: a first message, and what the store lacks."""
        opened: asyncio.Future[store_pb2.OpenResponse] = asyncio.Future()

        async def messages() -> AsyncGenerator[hub_pb2.EngineChunk, None]:
            yield head
            async with aclosing(read((await opened).missing)) as chunks:
                async for data in chunks:
                    yield hub_pb2.EngineChunk(data=data)

        receive = self._agents.copies.receive
        async with aclosing(messages()) as sent, aclosing(receive(sent)) as responses:
            async for response in responses:
                opened.set_result(response)

    def close(self) -> None:
        """Do nothing: closing `responses` ends the control stream."""

    async def _receive(self) -> AsyncIterator[hub_pb2.AgentControl]:
        while True:
            yield await self._requests.get()


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
        await asyncio.to_thread(check_exposure, self._config.gateway)
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

    @property
    def ready(self) -> bool:
        return self._gateway.ready

    def stop(self) -> None:
        self._gateway.stop()

    async def wait_stopped(self) -> None:
        await self._gateway.wait_stopped()


def _import_gateway() -> type[GatewayProcess]:
    from gateway.server import GatewayProcess

    return GatewayProcess
