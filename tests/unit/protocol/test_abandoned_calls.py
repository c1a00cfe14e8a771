"""Operations of calls that end early are freed."""

import asyncio
import threading
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # not in the stubs of grpcio

from synergai.protocol.grpcio import abandoned_calls
from synergai.protocol.grpcio.abandoned_calls import free_abandoned_operations, freeing


class Operations:
    """Stands for the function of grpcio: starts operations, awaits a future, frees them."""

    def __init__(self) -> None:
        self.future: Any = None
        self.freed = 0
        self.threads: set[int] = set()

    async def execute(
        self, _call: object, _operations: tuple[object, ...], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.future = loop.create_future()
        await self.future
        self.freed += 1
        self.threads.add(threading.get_ident())


async def start(operations: Operations) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(freeing(operations.execute)(None, (), loop))
    await asyncio.sleep(0)
    return task


async def test_completed_operations_are_freed() -> None:
    operations = Operations()
    task = await start(operations)
    operations.future.set_result(None)
    await task
    assert operations.freed == 1


async def test_failed_operations_are_freed_and_the_failure_raised() -> None:
    operations = Operations()
    task = await start(operations)
    operations.future.set_exception(ValueError("the client left"))
    assert operations.freed == 1
    with pytest.raises(ValueError, match="the client left"):
        await task


async def test_cancelling_does_not_wait_for_operations_that_are_freed_on_completion() -> None:
    operations = Operations()
    task = await start(operations)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert operations.freed == 0
    operations.future.set_exception(ValueError("the call was cancelled"))
    assert operations.freed == 1


async def test_operations_completed_by_another_event_loop_go_on_in_their_own() -> None:
    operations = Operations()
    task = await start(operations)
    batch = operations.future

    async def complete() -> None:
        batch.call_soon_threadsafe(batch.set_result, None)

    await asyncio.to_thread(asyncio.run, complete())
    await task
    assert operations.threads == {threading.get_ident()}


def test_the_function_is_replaced_once_in_affected_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Operations().execute
    monkeypatch.setattr(cygrpc, "execute_batch", original)
    monkeypatch.setattr(grpc, "__version__", "1.86.0")
    free_abandoned_operations()
    assert cygrpc.execute_batch == original
    monkeypatch.setattr(grpc, "__version__", "1.85.1")
    free_abandoned_operations()
    replaced = cygrpc.execute_batch
    assert replaced != original
    free_abandoned_operations()
    assert cygrpc.execute_batch is replaced


def test_the_pinned_version_is_known_to_be_affected() -> None:
    # After an upgrade, `benchmarks/abandoned_calls.py` shows whether the module is still needed.
    assert grpc.__version__.startswith(abandoned_calls._AFFECTED)
