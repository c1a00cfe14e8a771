"""The hub of a gateway in the agent's own process."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.serve.server import LocalConnection, LocalHub
from gateway.server import Gateway
from synergai.errors import Overloaded, Unavailable
from synergai.v1 import hub_pb2, store_pb2
from synergai.wire.work_messages import Orders, Reports, decode_reports
from synergai.wire.work_transport import WorkPipe
from tests.waiting import turns

HEARTBEAT = hub_pb2.AgentControl(heartbeat=hub_pb2.Heartbeat(sequence=7))


@dataclass
class FakeHub:
    """Hub and work streams of a gateway that acknowledges `messages` heartbeats."""

    messages: int = 10
    streams_ended: int = 0
    pipes: dict[str, WorkPipe] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    lacks: store_pb2.MissingContent | None = None

    async def control(
        self, requests: AsyncIterator[hub_pb2.AgentControl], _context: None
    ) -> AsyncGenerator[hub_pb2.GatewayControl, None]:
        try:
            for _ in range(self.messages):
                request = await anext(requests)
                ack = hub_pb2.HeartbeatAck(sequence=request.heartbeat.sequence)
                yield hub_pb2.GatewayControl(heartbeat_ack=ack)
        finally:
            self.streams_ended += 1

    async def receive(
        self, chunks: AsyncIterator[hub_pb2.EngineChunk]
    ) -> AsyncGenerator[store_pb2.OpenResponse, None]:
        self.sent.append((await anext(chunks)).engine.encode())
        if self.lacks is None:
            raise Overloaded("the store has no room")
        yield store_pb2.OpenResponse(missing=[self.lacks])
        self.sent += [chunk.data async for chunk in chunks]

    def serve(self, session: str, pipe: WorkPipe) -> None:
        self.pipes[session] = pipe


def gateway_of(fake: FakeHub, *, stopping: bool = False) -> Gateway:
    app = SimpleNamespace(agents=SimpleNamespace(hub=fake, work_streams=fake, copies=fake))
    gateway = SimpleNamespace(app=app, stopping=stopping, hub_address="127.0.0.1:8010")
    return cast("Gateway", gateway)


def open_hub(fake: FakeHub, *, stopping: bool = False) -> LocalHub:
    hub = LocalHub()
    hub.open(gateway_of(fake, stopping=stopping))
    return hub


async def connect(hub: LocalHub, stack: AsyncExitStack) -> LocalConnection:
    return await stack.enter_async_context(hub.connect())


async def lose(hub: LocalHub) -> None:
    """Connect, and lose the connection once a message was exchanged."""
    async with hub.connect() as connection:
        await connection.write(HEARTBEAT.SerializeToString())
        await connection.read()
        raise Unavailable("the work stream has ended")


async def test_agent_learns_that_the_gateway_closed_the_connection() -> None:
    async with open_hub(FakeHub(messages=0)).connect() as connection:
        with pytest.raises(Unavailable, match="closed the connection"):
            await connection.read()


async def test_lost_connection_is_reported_while_the_gateway_runs() -> None:
    fake = FakeHub()
    with pytest.raises(Unavailable, match="work stream"):
        await lose(open_hub(fake))
    assert fake.streams_ended == 1


async def test_connection_lost_while_the_gateway_stops_is_not_reported() -> None:
    fake = FakeHub()
    losing = asyncio.create_task(lose(open_hub(fake, stopping=True)))
    await turns()
    assert not losing.done()
    losing.cancel()
    await asyncio.wait([losing])
    assert losing.cancelled()
    assert fake.streams_ended == 1


async def test_work_is_served_over_a_pipe() -> None:
    fake = FakeHub()
    orders: list[Orders] = []
    reports: list[Reports] = []
    async with open_hub(fake).connect() as connection:
        registered = hub_pb2.Registered(session="s1")
        agent_end = await connection.open_work(registered, orders.append)
        gateway_end = fake.pipes["s1"]
        agent_end.send_message(Reports())  # too early
        gateway_end.listen(decode_reports, reports.append)
        gateway_end.send_message(Orders(stops=[1]))
        agent_end.send_message(Reports(started=[hub_pb2.Started()]))
    assert orders == [Orders(stops=[1])]
    assert reports == [Reports(started=[hub_pb2.Started()])]


async def test_engine_is_sent_as_far_as_the_store_lacks_it() -> None:
    async def read(missing: Iterable[store_pb2.MissingContent]) -> AsyncGenerator[bytes, None]:
        for each in missing:
            yield each.sha256.encode()

    fake, head = FakeHub(), hub_pb2.EngineChunk(engine="net")
    async with open_hub(fake).connect() as connection:
        with pytest.raises(Overloaded):
            await connection.send(head, read)
        fake.lacks = store_pb2.MissingContent(sha256="a")
        await connection.send(head, read)
    assert fake.sent == [b"net", b"net", b"a"]
