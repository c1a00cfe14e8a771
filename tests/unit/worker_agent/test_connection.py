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


class Busy:
    """A connection to a host that computes a query and a range."""

    def __init__(self) -> None:
        self.runs = ["query", "range"]
        self.connection = HostConnection(self.runs, lambda _: None, lambda: None)
        self.transport = FakeTransport()
        self.connection.connection_made(cast("asyncio.Transport", self.transport))
        self.connection.send(RunQuery(1, b""))
        self.connection.send(RunSamples(2, 0, 1_000_000))

    def end_query(self) -> None:
        self.runs.remove("query")
        self.connection.answered(quick=True)


async def test_a_stop_is_sent_at_once_behind_a_quick_query() -> None:
    busy = Busy()
    await asyncio.sleep(0)
    busy.end_query()
    busy.connection.send(RunQuery(3, b""))
    await asyncio.sleep(0)
    assert len(busy.transport.sent) == 2, "one wake-up serves the third and what follows"
    busy.connection.send(StopRun(2))
    await asyncio.sleep(0)
    assert busy.transport.sent[2:] == [RunQuery(3, b""), StopRun(2)]


async def test_a_stop_is_sent_at_once_although_a_quick_query_ends_in_the_same_turn() -> None:
    busy = Busy()
    await asyncio.sleep(0)
    busy.connection.send(StopRun(2))
    busy.end_query()
    await asyncio.sleep(0)
    assert busy.transport.sent[2:] == [StopRun(2)]
