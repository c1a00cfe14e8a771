"""Failures of the agent's hub connection."""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from synergai.domain import EngineName
from synergai.errors import InvalidInput, Unavailable
from synergai.protocol.tls import ClientTls
from synergai.runtime.backoff import Backoff
from synergai.v1 import hub_pb2
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.hub_client.client import HubClient
from worker_agent.hub_client.registration import ControlHandler
from worker_agent.hub_client.remote import RemoteHub, open_work_socket
from worker_agent.runner.runner import Runner


class FailingHandler:
    """Fails to describe the worker."""

    def __init__(self) -> None:
        self.tried = asyncio.Semaphore(0)

    def register_message(self) -> hub_pb2.Register:
        self.tried.release()
        raise ZeroDivisionError

    def read_input(self, engine: EngineName, url: str) -> bytes:
        raise NotImplementedError


class RegisteringHandler(FailingHandler):
    """Registers an empty worker."""

    def register_message(self) -> hub_pb2.Register:
        self.tried.release()
        return hub_pb2.Register()


@contextlib.asynccontextmanager
async def dialling(
    target: str,
    worker: FailingHandler,
    read_tls: Callable[[], ClientTls] = ClientTls,
) -> AsyncIterator[asyncio.Task[None]]:
    """Run a hub client with almost no backoff."""
    runner = Runner(cast("PowerModeHosts", None), {}, lambda: 0.0)
    hub = RemoteHub(target, 1 << 20, read_tls)
    line = HubClient(
        hub,
        cast("ControlHandler", worker),
        runner,
        [],
        backoff=Backoff(0.001, 0.001),
    )
    running = asyncio.create_task(line.run())
    try:
        yield running
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_internal_error_is_logged_and_the_client_reconnects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = FailingHandler()
    async with dialling("127.0.0.1:1", worker) as running:
        for _ in range(2):
            await worker.tried.acquire()
        assert not running.done()
    assert [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "retrying" in caplog.text


async def test_unreachable_gateway_is_logged_in_plain_words(
    caplog: pytest.LogCaptureFixture, unreachable: str
) -> None:
    worker = RegisteringHandler()
    async with dialling(unreachable, worker):
        for _ in range(2):
            await worker.tried.acquire()
    warning = caplog.records[0].getMessage()
    assert re.fullmatch(
        rf"not connected to the gateway at {unreachable}, retrying in 0\.\d s: "
        rf"cannot connect to {unreachable} \(connection refused\); is it running\?",
        warning,
    )


async def test_gateways_are_tried_in_turn(
    caplog: pytest.LogCaptureFixture, unreachable: str
) -> None:
    targets = [unreachable, "127.0.0.1:1"]
    worker = RegisteringHandler()
    async with dialling(",".join(targets), worker):
        for _ in range(4):
            await worker.tried.acquire()
    tried = [re.search(r"gateway at ([\d.:]+)", each.getMessage()) for each in caplog.records[:3]]
    assert [each and each[1] for each in tried] == [*targets, unreachable]


async def test_certificate_is_read_before_each_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = iter([InvalidInput("the key is still to come")])

    def read_tls() -> ClientTls:
        for error in found:
            raise error
        return ClientTls()

    worker = RegisteringHandler()
    async with dialling("127.0.0.1:1", worker, read_tls):
        await worker.tried.acquire()
    assert "the key is still to come" in caplog.text


async def test_unreachable_work_port_names_the_option_to_check(unreachable: str) -> None:
    host, _, port = unreachable.rpartition(":")
    with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port}: .* --work-port"):
        await open_work_socket(
            host,
            int(port),
            "id",
            lambda _: None,
            tls=None,
            max_message_bytes=1 << 20,
            timeout_s=1.0,
        )


async def test_malformed_orders_close_the_socket_with_a_reason() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4 + len("session"))
        writer.write((3).to_bytes(4, "little") + b"\xff\xff\xff")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    closed = asyncio.Event()
    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        socket = await open_work_socket(
            "127.0.0.1",
            port,
            "session",
            lambda _: None,
            tls=None,
            max_message_bytes=100,
            timeout_s=5.0,
        )
        with pytest.raises(InvalidInput, match="not a WorkOrders"):
            await socket.closed
        await closed.wait()
