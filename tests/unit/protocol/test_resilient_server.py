"""Replacement of gRPC servers that end by themselves."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from synergai.errors import InternalError
from synergai.protocol.grpcio import resilient_server
from synergai.protocol.grpcio.resilient_server import ResilientServer
from tests.waiting import until


class FakeServer(grpc.aio.Server):
    """A server that ends when told to; its open calls end when it is stopped."""

    def __init__(self, *, binds: bool) -> None:
        self.ended: Exception | None = None
        self.handlers: object = None
        self.started = False
        self.stops: list[float | None] = []
        self._binds = binds
        self._calls_ended = asyncio.Event()

    def add_generic_rpc_handlers(self, generic_rpc_handlers: object) -> None:
        self.handlers = generic_rpc_handlers

    def add_insecure_port(self, _address: str) -> int:
        if not self._binds:
            raise RuntimeError
        return 8001

    def add_secure_port(self, _address: str, _credentials: object) -> int:
        raise NotImplementedError

    async def start(self) -> None:
        self.started = True

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - grpc's
        del timeout
        if self.ended is not None:
            raise self.ended
        return True

    async def stop(self, grace: float | None) -> None:
        self.stops.append(grace)
        if grace is not None and grace > 60.0:
            await self._calls_ended.wait()
        self._calls_ended.set()


class FakeListener:
    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 8001


class FakeFront:
    """A front without sockets.

    Attributes:
        closed: whether the port was released.
    """

    closed = False

    def __init__(self, *_: object) -> None:
        self.path = ""

    def start(self) -> None:
        pass

    def retire(self) -> None:
        pass

    async def drain(self, grace: float) -> None:
        pass

    def close(self) -> None:
        FakeFront.closed = True


class Servers:
    """Servers of one port, and whether further ones can bind it."""

    def __init__(self) -> None:
        self.made: list[FakeServer] = []
        self.bindable = True
        self.failures: list[InternalError] = []
        self.resilient = ResilientServer(self._make, self.failures.append, 1)

    def _make(self) -> FakeServer:
        self.made.append(FakeServer(binds=self.bindable))
        return self.made[-1]

    async def end(self) -> None:
        """Let the current server end, and wait until that is handled."""
        made = len(self.made)
        self.made[-1].ended = ValueError("not UTF-8")
        for notify in resilient_server._notified:
            notify()
        await until(
            lambda: (
                bool(self.failures)
                or (
                    len(self.made) > made
                    and self.made[-1].started
                    and self.resilient.restarts == made
                )
            )
        )


@pytest.fixture
async def servers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Servers]:
    monkeypatch.setattr(resilient_server, "Front", FakeFront)
    monkeypatch.setattr(FakeFront, "closed", False)
    monkeypatch.setattr(resilient_server, "bind", lambda *_, **__: [FakeListener()])
    monkeypatch.setattr(resilient_server, "_SHUTDOWN_S", 0.0)
    servers = Servers()
    assert servers.resilient.bind("127.0.0.1:0") == "127.0.0.1:8001"
    await servers.resilient.start(())
    yield servers
    await servers.resilient.stop(1.0)
    assert FakeFront.closed
    assert not resilient_server._notified


async def test_ended_server_is_replaced_and_kept_for_its_calls(servers: Servers) -> None:
    await servers.end()
    first, second = servers.made
    assert second.handlers == first.handlers
    await servers.resilient.stop(1.0)
    assert second.stops == [0.0]
    assert first.stops[-1] == 0.0


async def test_few_ended_servers_are_kept(servers: Servers) -> None:
    for _ in range(resilient_server._MOST_ENDED + 1):
        await servers.end()
    await until(lambda: bool(servers.made[-2].stops))
    assert servers.made[-2].stops == [resilient_server._ENDED_GRACE_S]
    assert all(
        each.stops == [resilient_server._UNLIMITED_S]
        for each in servers.made[: resilient_server._MOST_ENDED]
    )


async def test_server_that_cannot_be_replaced_is_a_failure(servers: Servers) -> None:
    servers.bindable = False
    await servers.end()
    (failure,) = servers.failures
    assert str(failure).startswith("a gRPC server ended (not UTF-8): cannot listen on unix:")


async def test_replacements_are_logged_once_in_a_while(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await servers.end()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "a call ended the gRPC server on 127.0.0.1:8001 (not UTF-8); it was replaced"
    )


async def test_server_that_ends_while_it_is_stopped_is_stopped(servers: Servers) -> None:
    (server,) = servers.made
    stop, raised = server.stop, False

    async def fail_once(grace: float | None) -> None:
        nonlocal raised
        if not raised:
            raised = True
            raise ValueError("not UTF-8")
        await stop(grace)

    server.stop = fail_once  # type: ignore[method-assign]  # ends at this moment
    await servers.resilient.stop(1.0)
    assert server.stops == [0.0]
