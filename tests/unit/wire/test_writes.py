"""Calls keep the server's status when a write fails."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from synergai.wire.writes import keep_status, write_all


class CythonCall:
    """The part of grpcio's call that matters here."""

    def __init__(self) -> None:
        self.status = "none"

    def set_internal_error(self, text: str) -> None:
        self.status = f"INTERNAL {text}"

    def send_serialized_message(self) -> str:
        return "sent"

    def receive_serialized_message(self) -> str:
        return "received"

    def done(self) -> bool:
        return self.status != "none"


def test_failed_write_replaces_the_status_only_if_the_call_was_misused() -> None:
    inner = CythonCall()
    call: Any = keep_status(SimpleNamespace(_cython_call=inner))  # type: ignore[type-var]  # a fake
    call._cython_call.set_internal_error("a write failed")
    assert (inner.status, call._cython_call.done()) == ("none", False)
    assert call._cython_call.send_serialized_message() == "sent"
    assert call._cython_call.receive_serialized_message() == "received"
    call._cython_call.set_internal_error("Failed grpc_call_start_batch: 8 with ...")  # two at once
    assert inner.status.startswith("INTERNAL")


@pytest.mark.parametrize(
    "raised", [ValueError, GeneratorExit, asyncio.CancelledError, asyncio.InvalidStateError]
)
async def test_error_of_making_a_request_ends_the_call(raised: type[BaseException]) -> None:
    async def requests() -> AsyncIterator[str]:
        yield "first"
        raise raised

    call = Mock(write=AsyncMock(), done_writing=AsyncMock())
    with pytest.raises(raised):
        await write_all(call, requests())
    call.cancel.assert_called_once_with()


async def test_cancelled_writer_leaves_the_call_to_its_owner() -> None:
    async def requests() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield "first"

    call = Mock(write=AsyncMock())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await write_all(call, requests())
    call.cancel.assert_not_called()


async def test_call_that_has_ended_takes_no_more_requests() -> None:
    async def requests() -> AsyncIterator[str]:
        yield "first"
        raise AssertionError

    call = Mock(write=AsyncMock(side_effect=asyncio.InvalidStateError))
    await write_all(call, requests())
    call.cancel.assert_not_called()
