"""Multiplexing of single queries over one stream."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import pytest

from synergai.client.shared_stream import QueryMultiplexer
from synergai.oip import inference_pb2 as oip

if TYPE_CHECKING:
    from synergai.client.channel import GatewayChannel


class StalledCall:
    """A call whose peer neither reads nor writes.

    Attributes:
        fault: the exception that the next write raises, if any.
    """

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self._cancelled = asyncio.Event()

    async def write(self, _message: oip.ModelInferRequest) -> None:
        if self.fault is not None:
            raise self.fault
        await asyncio.Event().wait()

    def cancel(self) -> None:
        self._cancelled.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NoReturn:
        await self._cancelled.wait()
        raise asyncio.CancelledError


def multiplexer_over(call: StalledCall) -> QueryMultiplexer:
    stub = SimpleNamespace(ModelStreamInfer=lambda **_: call)
    return QueryMultiplexer(cast("GatewayChannel", SimpleNamespace(oip=stub)), in_flight=4)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_unsent_queries_are_dropped_when_cancelled() -> None:
    multiplexer = multiplexer_over(StalledCall())
    tasks = [
        asyncio.create_task(multiplexer.request(oip.ModelInferRequest(), timeout=None))
        for _ in range(20)
    ]
    await settle()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert len(multiplexer._send_queue) <= 1, "one is being written and is cancelled after that"
    await multiplexer.close()


async def test_failed_write_ends_all_pending_queries() -> None:
    call = StalledCall()
    call.fault = ValueError("a message that cannot be written")
    multiplexer = multiplexer_over(call)
    replies: list[Any] = await asyncio.gather(
        *(multiplexer.request(oip.ModelInferRequest(), timeout=None) for _ in range(3))
    )
    assert replies == [None] * 3
    assert multiplexer.closed
    with pytest.raises(ValueError, match="cannot be written"):
        multiplexer._writer.result()
