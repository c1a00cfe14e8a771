"""Lifecycle of a serving process: event loop, logging, signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

from synergai.runtime.heap import GlibcHeap, retain_freed_memory
from synergai.runtime.idle_memory import IdleTrimmer
from synergai.runtime.processes import raise_descriptor_limit
from synergai.runtime.systemd import notify_lifecycle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from synergai.runtime.setting_types import LogLevel

_FULL_COLLECTION: Final = 200
"""Collections of middle-aged objects after which one of all objects may follow."""


class Stoppable(Protocol):
    """A service that runs until it is stopped."""

    def stop(self) -> None:
        """Begin to stop; idempotent."""

    async def wait_stopped(self) -> None:
        """Wait until the service has stopped."""


def run_service(
    make: Callable[[], AbstractAsyncContextManager[Stoppable]], log_level: LogLevel
) -> None:
    """Run a service, made on the loop, on uvloop until it stops; SIGINT and SIGTERM stop it.

    A second signal exits the process at once.
    """
    import uvloop  # deferred to keep --help fast

    logging.basicConfig(
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", level=log_level.upper()
    )
    retain_freed_memory()
    raise_descriptor_limit()
    uvloop.run(_serve(make))


async def _serve(make: Callable[[], AbstractAsyncContextManager[Stoppable]]) -> None:
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()
    started: Stoppable | None = None
    signalled = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal signalled
        if signalled:
            os._exit(128 + number)
        signalled = True
        if started is not None:
            started.stop()
        elif starting is not None:
            starting.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        async with make() as service, notify_lifecycle(), _trimming():
            started = service
            # Objects created during start-up live as long as the process. Frozen, they are skipped
            # by full collections, which would stall requests for tens of milliseconds.
            gc.freeze()
            # Each object of a call counts, so that thousands of calls which begin together would
            # otherwise have a full collection every time their number has grown by a quarter.
            gc.set_threshold(*gc.get_threshold()[:2], _FULL_COLLECTION)
            await service.wait_stopped()
    except asyncio.CancelledError:
        # A signal during start-up is an orderly stop as well.
        if not signalled:
            raise


@asynccontextmanager
async def _trimming() -> AsyncIterator[None]:
    """Give freed memory back while the process is idle, as long as the context is open."""
    heap = GlibcHeap.find()
    if heap is None:
        yield
        return
    trimming = asyncio.create_task(IdleTrimmer(heap).run())
    try:
        yield
    finally:
        trimming.cancel()
        with suppress(asyncio.CancelledError):
            await trimming
