"""Work sockets of valid, misbehaving and unauthenticated peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai.v1 import fleet_pb2, hub_pb2
from synergai.wire.request_codec import Buffer
from synergai.wire.work_socket import WorkSocket
from tests.integration.gateway.conftest import Caller, Connect, FakeAgent, infer_request


async def open_work_socket(
    port: int, connection_id: str, on_message: Callable[[Buffer], None]
) -> WorkSocket:
    loop = asyncio.get_running_loop()
    _, socket = await loop.create_connection(
        lambda: WorkSocket(on_message, 1 << 24), "127.0.0.1", port
    )
    socket.send((connection_id.encode(),))
    return socket


@pytest.mark.parametrize("values", [1, 1_000_000])
async def test_newer_socket_replaces_the_older_and_carries_requests_of_any_size(
    agent: FakeAgent, caller: Caller, values: int
) -> None:
    def answer(data: Buffer) -> None:
        orders = hub_pb2.WorkOrders.FromString(bytes(data))
        ends = [
            hub_pb2.Ended(
                outcome=hub_pb2.OUTCOME_COMPLETED,
                progress=hub_pb2.Progress(
                    assignment_id=each.id, done=1, responses=[agent.echoed(each.requests[0])]
                ),
            )
            for each in orders.assignments
        ]
        socket.send((hub_pb2.WorkReports(ended=ends).SerializeToString(),))

    socket = await open_work_socket(agent.work_port, agent.connection_id, answer)
    await asyncio.wait_for(agent.work_closed.wait(), 30)
    try:
        request = infer_request(values)
        response = await caller.oip.ModelInfer(request, timeout=30)
        assert response.raw_output_contents[0] == request.raw_input_contents[0]
        assert not agent.assignments
    finally:
        socket.close()


async def test_socket_with_an_unknown_connection_id_is_closed(
    agent: FakeAgent, caller: Caller
) -> None:
    socket = await open_work_socket(agent.work_port, "who-am-i", lambda _: None)
    await asyncio.wait_for(socket.closed, 30)
    assert len(await caller.workers(1)) == 1


async def test_malformed_message_on_a_socket_closes_the_connection(
    agent: FakeAgent, caller: Caller
) -> None:
    socket = await open_work_socket(agent.work_port, agent.connection_id, lambda _: None)
    socket.send((b"\xff\xff\xff",))
    await caller.workers(0)
    await asyncio.wait_for(asyncio.wait([socket.closed]), 30)
    await asyncio.wait_for(agent.ended.wait(), 30)
    assert agent.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_lost_socket_removes_the_worker(agent: FakeAgent, caller: Caller) -> None:
    socket = await open_work_socket(agent.work_port, agent.connection_id, lambda _: None)
    await asyncio.wait_for(agent.work_closed.wait(), 30)
    await caller.workers(1)
    socket.close()
    await caller.workers(0)


async def test_agent_that_reads_nothing_blocks_neither_socket_nor_gateway(
    config: GatewaySettings,
    connect: Connect,
) -> None:
    async with Gateway(config) as gateway:
        caller, agent = await connect(gateway)
        _, stuck = await asyncio.open_connection("127.0.0.1", agent.work_port, limit=1)
        stuck.write(len(agent.connection_id).to_bytes(4, "little") + agent.connection_id.encode())
        await asyncio.wait_for(agent.work_closed.wait(), 30)
        await caller.workers(1)
        call = caller.oip.ModelInfer(infer_request(6_000_000))
        await caller.until(lambda worker: worker.state != fleet_pb2.WORKER_STATE_IDLE)

        agent.heartbeats = False  # as an agent that is stopped

        call.cancel()
        await caller.workers(0)
        gateway.stop()
        await asyncio.wait_for(gateway.wait_stopped(), 30)
        stuck.close()
