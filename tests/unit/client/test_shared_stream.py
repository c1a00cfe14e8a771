"""Rules of the stream that carries a client's single queries."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import pytest

from synergai.client.shared_stream import SharedStream
from synergai.oip import inference_pb2 as oip

if TYPE_CHECKING:
    from synergai.client.channel import Connection


class StalledCall:
    """A call whose peer reads nothing and says nothing.

    Attributes:
        fault: what the next message to be written fails with.
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


def stream_over(call: StalledCall) -> SharedStream:
    stub = SimpleNamespace(ModelStreamInfer=lambda **_: call)
    return SharedStream(cast("Connection", SimpleNamespace(oip=stub)), in_flight=4)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_query_that_nobody_waits_for_is_not_kept_for_a_gateway_that_does_not_read() -> None:
    stream = stream_over(StalledCall())
    asked = [
        asyncio.create_task(stream.ask(oip.ModelInferRequest(), timeout=None)) for _ in range(20)
    ]
    await settle()
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)
    assert len(stream._unsent) <= 1, "one is being written, and is to be called off"
    await stream.close()


async def test_queries_of_a_stream_that_cannot_be_written_to_do_not_wait_for_ever() -> None:
    call = StalledCall()
    call.fault = ValueError("a message that cannot be written")
    stream = stream_over(call)
    answers: list[Any] = await asyncio.gather(
        *(stream.ask(oip.ModelInferRequest(), timeout=None) for _ in range(3))
    )
    assert answers == [None] * 3
    assert stream.is_over
    with pytest.raises(ValueError, match="cannot be written"):
        stream._writer.result()
