"""Single queries over one stream."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn, Self, cast
from unittest.mock import Mock

import pytest

from synergai.client.channel import GatewayChannel
from synergai.client.client import Client
from synergai.client.connection import QueryStream, SharedStream
from synergai.errors import Cancelled
from synergai.oip import inference_pb2 as oip
from tests.waiting import turns

if TYPE_CHECKING:
    from synergai.client.streaming import Reply


class StalledCall:
    """A call whose peer neither reads nor writes."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self._cancelled = asyncio.Event()

    async def write(self, _message: oip.ModelInferRequest) -> None:
        if self.fault is not None:
            raise self.fault
        await asyncio.Event().wait()

    async def done_writing(self) -> None:
        self.cancel()

    def cancel(self) -> None:
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NoReturn:
        await self._cancelled.wait()
        raise asyncio.CancelledError


def channel_over(call: StalledCall) -> GatewayChannel:
    channel = SimpleNamespace(
        target="gate:1",
        gateway=0,
        oip=SimpleNamespace(ModelStreamInfer=lambda **_: call),
        cancellation_cause=lambda cancellation: cancellation,
        ensure_open=lambda: None,
        closed=False,
        retry=lambda attempt, timeout: attempt(timeout),
    )
    return cast("GatewayChannel", channel)


def stream_over(call: StalledCall) -> QueryStream:
    return QueryStream(channel_over(call), in_flight=4)


async def settle() -> None:
    await turns(10)


async def test_unsent_queries_are_dropped_when_cancelled() -> None:
    stream = stream_over(StalledCall())
    tasks = [
        asyncio.create_task(stream.request(oip.ModelInferRequest(), timeout=None))
        for _ in range(20)
    ]
    await settle()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert len(stream._send_queue) <= 1, "one is being written and is cancelled after that"
    await stream.close()


async def test_failed_write_ends_all_pending_queries() -> None:
    call = StalledCall()
    call.fault = ValueError("a message that cannot be written")
    stream = stream_over(call)
    replies: list[Reply] = await asyncio.gather(
        *(stream.request(oip.ModelInferRequest(), timeout=None) for _ in range(3))
    )
    assert replies == [None] * 3
    assert stream.closed
    assert isinstance(stream.failure, ValueError)
    assert str(stream.failure) == "a message that cannot be written"


async def test_stream_may_be_closed_again_and_by_two_tasks_at_once() -> None:
    channel = channel_over(StalledCall())
    shared = SharedStream(channel, max_message_bytes=1000, in_flight=4)
    query = asyncio.create_task(shared.infer(oip.ModelInferRequest(), timeout=None))
    await settle()
    channel.closed = True
    await asyncio.gather(shared.close(), shared.close())
    await shared.close()
    with pytest.raises(Cancelled, match="the client was closed"):
        await query


class SilentCall(StalledCall):
    """A call whose peer does not end it."""

    async def done_writing(self) -> None:
        pass


async def test_query_while_the_client_closes_opens_no_other_stream() -> None:
    call = SilentCall()
    client = await Client("127.0.0.1:9").connect()
    stub = client._channel.oip = Mock(ModelStreamInfer=Mock(return_value=call))
    shared = client._shared_stream
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.0):
            await shared.infer(oip.ModelInferRequest(), timeout=None)
    closing = asyncio.create_task(client.close())
    await settle()
    with pytest.raises(Cancelled, match="the client is closed"):
        await shared.infer(oip.ModelInferRequest(), timeout=None)
    stub.ModelStreamInfer.assert_called_once()
    closing.cancel()
    await asyncio.wait([closing])
    assert call.is_cancelled
