"""An agent's connection when what goes wrong was not foreseen."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING, cast

import pytest

from synergai.errors import InvalidInput
from synergai.runtime.backoff import Backoff
from synergai.testing import free_port
from synergai.v1 import hub_pb2
from worker_agent.hub_client.client import HubClient
from worker_agent.hub_client.work_channel import open_socket_channel
from worker_agent.runner import Runner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import grpc

    from worker_agent.hosts.pool import HostPool
    from worker_agent.hub_client.registration import ControlHandler


class ClumsyWorker:
    """Cannot introduce itself."""

    def __init__(self) -> None:
        self.tried = asyncio.Semaphore(0)

    def register_message(self) -> hub_pb2.Register:
        self.tried.release()
        raise ZeroDivisionError


class Introduced(ClumsyWorker):
    """Introduces itself."""

    def register_message(self) -> hub_pb2.Register:
        self.tried.release()
        return hub_pb2.Register()


@contextlib.asynccontextmanager
async def dialling(
    target: str,
    worker: ClumsyWorker,
    credentials: Callable[[], grpc.ChannelCredentials | None] = lambda: None,
) -> AsyncIterator[asyncio.Task[None]]:
    """A connection that tries to reach a gateway, and hardly waits between."""
    runner = Runner(cast("HostPool", None), {}, lambda: 0.0)
    line = HubClient(
        target,
        cast("ControlHandler", worker),
        runner,
        [],
        1 << 20,
        credentials,
        backoff=Backoff(0.001, 0.001),
    )
    running = asyncio.create_task(line.run())
    try:
        yield running
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_fault_of_ours_is_logged_and_the_gateway_dialled_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = ClumsyWorker()
    async with dialling("127.0.0.1:1", worker) as running:
        for _ in range(2):
            await worker.tried.acquire()
        assert not running.done()
    assert [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "retrying" in caplog.text


async def test_gateway_that_is_not_there_is_said_to_be_so_in_our_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = f"127.0.0.1:{free_port()}"
    worker = Introduced()
    async with dialling(target, worker):
        for _ in range(2):
            await worker.tried.acquire()
    warning = caplog.records[0].getMessage()
    assert re.fullmatch(
        rf"not connected to the gateway at {target}, retrying in 0\.\d s: "
        rf"cannot connect to {target} \(connection refused\); is it running\?",
        warning,
    )


async def test_certificate_is_read_again_before_each_dial(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = iter([InvalidInput("the key is still to come")])

    def credentials() -> None:
        for error in found:
            raise error

    worker = Introduced()
    async with dialling("127.0.0.1:1", worker, credentials):
        await worker.tried.acquire()
    assert "the key is still to come" in caplog.text


async def test_port_that_is_not_let_through_leaves_the_work_to_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    line = await open_socket_channel(
        "127.0.0.1", port, "session", lambda _: None, max_message_bytes=1 << 20, timeout_s=1.0
    )
    assert line is None
    assert f"cannot open a work socket to 127.0.0.1:{port}" in caplog.text


async def test_orders_that_are_none_end_the_line_with_a_reason() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4 + len("session"))
        writer.write((3).to_bytes(4, "little") + b"\xff\xff\xff")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        line = await open_socket_channel(
            "127.0.0.1", port, "session", lambda _: None, max_message_bytes=100, timeout_s=5.0
        )
        assert line is not None
        with pytest.raises(InvalidInput, match="not a WorkOrders"):
            await line.receive()
