"""The agent's connection to an engine host."""

import asyncio
from typing import cast

from worker_agent.hosts.connection import HostConnection
from worker_agent.ipc import Decoder, Message, RunQuery, RunSamples, StopRun


class FakeTransport:
    """Decodes what is sent to the host."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self._decoder = Decoder()

    def write(self, data: bytes) -> None:
        self.sent += self._decoder.feed(data)


async def test_a_stop_is_sent_at_once_behind_a_quick_query() -> None:
    runs = ["query", "range"]
    connection = HostConnection(runs, lambda _: None, lambda: None)
    transport = FakeTransport()
    connection.connection_made(cast("asyncio.Transport", transport))
    connection.send(RunQuery(1, b""))
    connection.send(RunSamples(2, 0, 1_000_000))
    await asyncio.sleep(0)
    runs.remove("query")
    connection.answered(quick=True)
    connection.send(RunQuery(3, b""))
    await asyncio.sleep(0)
    assert len(transport.sent) == 2, "one wake-up serves the third message and what follows"
    connection.send(StopRun(2))
    await asyncio.sleep(0)
    assert transport.sent[2:] == [RunQuery(3, b""), StopRun(2)]


async def test_a_stop_is_sent_at_once_although_a_quick_query_ends_in_the_same_turn() -> None:
    runs = ["query", "range"]
    connection = HostConnection(runs, lambda _: None, lambda: None)
    transport = FakeTransport()
    connection.connection_made(cast("asyncio.Transport", transport))
    connection.send(RunQuery(1, b""))
    connection.send(RunSamples(2, 0, 1_000_000))
    await asyncio.sleep(0)
    connection.send(StopRun(2))
    runs.remove("query")
    connection.answered(quick=True)
    await asyncio.sleep(0)
    assert transport.sent[2:] == [StopRun(2)]
