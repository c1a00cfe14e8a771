"""An agent's connection when what goes wrong was not foreseen."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, cast

from worker_agent import connection
from worker_agent.connection import Connection
from worker_agent.runner import Runner

if TYPE_CHECKING:
    import pytest

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
    line = Connection("127.0.0.1:1", cast("connection.Worker", worker), runner, [], 1 << 20)
    running = asyncio.create_task(line.run())
    for _ in range(2):
        await worker.tried.acquire()
    assert not running.done()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "trying again" in caplog.text
