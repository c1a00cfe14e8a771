"""Failures of the agent's hub connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc
import pytest

from synergai.errors import InvalidInput, Unavailable
from synergai.runtime.clock import Backoff
from synergai.v1 import hub_pb2
from synergai.wire.credentials import ClientTls
from synergai.wire.work_socket import WorkSocket
from tests.integration.worker_agent.fake_hub import FakeHub
from tests.waiting import until
from worker_agent.exchange import Exchange
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.hub_client.client import ControlHandler, HubClient
from worker_agent.hub_client.remote import LatestLeader, RemoteHub, open_work_socket
from worker_agent.runner import Runner

if TYPE_CHECKING:
    from worker_agent.placements.reconciler import Fetch


class FailingHandler:
    """Fails to describe the worker."""

    def __init__(self) -> None:
        self.tried = asyncio.Semaphore(0)
        self.exchange = Exchange(0, 1 << 20)
        self.runner = Runner(cast("PowerModeHosts", None), {}, lambda: 0.0)
        self.configurations = ()

    async def register_message(self) -> hub_pb2.Register:
        self.tried.release()
        raise ZeroDivisionError


class RegisteringHandler(FailingHandler):
    """Registers an empty worker."""

    fetch: Fetch | None = None

    async def register_message(self) -> hub_pb2.Register:
        self.tried.release()
        return hub_pb2.Register()

    def heartbeat_message(self) -> hub_pb2.Heartbeat:
        return hub_pb2.Heartbeat()

    def place_engines(self, _placements: Sequence[hub_pb2.Placement], fetch: Fetch) -> None:
        self.fetch = fetch


def silent_hub(epoch: int = 0) -> FakeHub:
    """Return a gateway that acknowledges no heartbeat."""
    return FakeHub(0.02, acknowledges=False, epoch=epoch)


@contextlib.asynccontextmanager
async def dialling(
    target: str,
    worker: FailingHandler,
    read_tls: Callable[[], ClientTls] = ClientTls,
    leader: LatestLeader | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Run a hub client with almost no backoff."""
    hub = RemoteHub(target, 1 << 20, read_tls, leader=leader)
    client = HubClient(hub, backoff=Backoff(0.001, 0.001))
    running = asyncio.create_task(client.run(cast("ControlHandler", worker)))
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
    assert re.findall(r"gateway at ([\d.:]+),", caplog.text)[:3] == [*targets, unreachable]


async def test_gateway_of_an_earlier_epoch_than_seen_is_not_obeyed(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    former, later = silent_hub(epoch=1), silent_hub(epoch=2)
    worker = RegisteringHandler()
    async with former.listening() as old, later.listening() as new:
        async with dialling(new, worker, leader=LatestLeader(tmp_path)):
            await later.heard("heartbeat")
        async with dialling(old, worker, leader=LatestLeader(tmp_path)):
            for _ in range(3):
                await worker.tried.acquire()
    assert "this gateway led in epoch 1, and another one leads since epoch 2" in caplog.text


async def test_silent_gateway_is_left_for_another_one_that_listens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent, other = silent_hub(), silent_hub()
    worker = RegisteringHandler()
    async with (
        silent.listening() as first,
        other.listening() as second,
        dialling(f"{first},{second}", worker),
    ):
        await other.registrations.get()
    assert f"3 heartbeats were not acknowledged; {second} listens" in caplog.text


async def test_silent_gateway_is_kept_while_no_other_one_listens(unreachable: str) -> None:
    silent = silent_hub()
    worker = RegisteringHandler()
    async with silent.listening() as first, dialling(f"{first},{unreachable}", worker):
        for _ in range(10):
            await silent.heard("heartbeat")
    await worker.tried.acquire()
    assert worker.tried.locked()


async def test_fetch_ends_with_the_connection_of_its_agent() -> None:
    worker = RegisteringHandler()
    hub = silent_hub()
    async with hub.listening() as target:
        async with dialling(target, worker):
            await hub.registrations.get()
            hub.order(hub_pb2.GatewayControl(placements=hub_pb2.Placements()))
            await until(lambda: worker.fetch is not None)
            assert worker.fetch is not None
            chunks = worker.fetch("0" * 64, 0)
            assert await anext(chunks) == b"x"
            with pytest.raises(Unavailable, match="has ended"):  # after 20 heartbeats
                await anext(chunks)
            again = worker.fetch
        with pytest.raises(Unavailable, match="has ended"):
            await anext(again("0" * 64, 0))


@pytest.mark.parametrize("targets", ["far:8010", "127.0.0.1:8010,far:8010"])
async def test_token_is_sent_to_other_machines_over_tls_only(targets: str) -> None:
    def hub(token: str, tls: ClientTls | None = None) -> RemoteHub:
        return RemoteHub(targets, 1 << 20, lambda: tls or ClientTls(), lambda: token)

    reason = "worker's token is not sent to far:8010 without encryption: use TLS"
    with pytest.raises(InvalidInput, match=reason):
        hub("token").check()
    async with contextlib.AsyncExitStack() as stack:
        dialled = hub("token")
        for _ in targets.split(",")[1:]:
            await stack.enter_async_context(dialled.connect())
        with pytest.raises(InvalidInput, match=reason):
            await stack.enter_async_context(dialled.connect())
    hub("").check()
    hub("token", ClientTls(grpc.ssl_channel_credentials())).check()
    RemoteHub("127.0.0.1:8010,[::1]:8010", 1 << 20, read_token=lambda: "token").check()


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


async def open_socket(address: str) -> WorkSocket:
    host, _, port = address.rpartition(":")
    return await open_work_socket(
        host,
        int(port),
        "session",
        lambda _: None,
        tls=None,
        max_message_bytes=100,
        timeout_s=5.0,
        lost_after_s=4.0,
    )


async def test_unreachable_work_port_names_the_option_to_check(unreachable: str) -> None:
    with pytest.raises(Unavailable, match=rf"{re.escape(unreachable)}: .* --work-port"):
        await open_socket(unreachable)


async def test_system_ends_a_work_socket_whose_gateway_acknowledges_nothing() -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        closed.set()

    closed = asyncio.Event()
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        work = await open_socket(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert work._transport is not None
        connection = work._transport.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 4000
        work.close()
        await closed.wait()


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
        work = await open_socket(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(InvalidInput, match="not a message of the work stream"):
            await work.closed
        await closed.wait()
