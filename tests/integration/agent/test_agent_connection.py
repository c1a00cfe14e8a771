"""An agent's connection when what goes wrong was not foreseen."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, cast

import pytest

from synergai.errors import InvalidInput
from synergai.testing import free_port
from worker_agent import connection
from worker_agent.connection import Connection
from worker_agent.runner import Runner
from worker_agent.work_channel import open_line

if TYPE_CHECKING:
    from worker_agent.gateway_link import Worker
    from worker_agent.hosts import Hosts


class ClumsyWorker:
    """Cannot introduce itself."""

    def __init__(self) -> None:
        self.tried = asyncio.Semaphore(0)

    def register(self) -> None:
        self.tried.release()
        raise ZeroDivisionError


async def test_fault_of_ours_is_logged_and_the_gateway_dialled_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "FIRST_BACKOFF_S", 0.001)
    worker = ClumsyWorker()
    runner = Runner(cast("Hosts", None), {}, lambda: 0.0)
    line = Connection("127.0.0.1:1", cast("Worker", worker), runner, [], 1 << 20)
    running = asyncio.create_task(line.run())
    for _ in range(2):
        await worker.tried.acquire()
    assert not running.done()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "trying again" in caplog.text


async def test_port_that_is_not_let_through_leaves_the_work_to_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    line = await open_line(
        "127.0.0.1", port, "session", lambda _: None, max_message_bytes=1 << 20, timeout_s=1.0
    )
    assert line is None
    assert f"no work line to 127.0.0.1:{port}" in caplog.text


async def test_orders_that_are_none_end_the_line_with_a_reason() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4 + len("session"))
        writer.write((3).to_bytes(4, "little") + b"\xff\xff\xff")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        line = await open_line(
            "127.0.0.1", port, "session", lambda _: None, max_message_bytes=100, timeout_s=5.0
        )
        assert line is not None
        with pytest.raises(InvalidInput, match="not a WorkOrders"):
            await line.receive()
