"""Processes that serve until they are told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from typing import TYPE_CHECKING, Protocol

from synergai.runtime.allocator import keep_freed_memory
from synergai.runtime.systemd import notify_lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from synergai.runtime.settings import LogLevel


class Service(Protocol):
    """What runs until it is told to stop."""

    def stop(self) -> None:
        """Begin to stop; again is harmless."""

    async def wait_stopped(self) -> None:
        """Return once it has stopped."""


def run_service(
    make: Callable[[], AbstractAsyncContextManager[Service]], log_level: LogLevel
) -> None:
    """Run a service on uvloop until it stops; SIGINT or SIGTERM tells it to.

    A second signal ends the process at once: whoever sends it has waited long enough.

    Args:
        make: makes the service; called on the running loop, since gRPC objects belong to one.
        log_level: from which level on messages go to standard error.
    """
    import uvloop  # here, so that showing a command's help stays quick

    logging.basicConfig(
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", level=log_level.upper()
    )
    ignore_client_disconnects()
    keep_freed_memory()
    uvloop.run(_serve(make))


def ignore_client_disconnects() -> None:
    """Have gRPC not log, with a traceback, that a client left while it was written to."""

    def is_news(record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        # gRPC offers the class under a private name only.
        return kind is None or kind.__name__ != "ExecuteBatchError"

    logging.getLogger("grpc._cython.cygrpc").addFilter(is_news)


async def _serve(make: Callable[[], AbstractAsyncContextManager[Service]]) -> None:
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()
    started: Service | None = None
    told = False

    def tell(number: signal.Signals) -> None:
        nonlocal told
        if told:
            os._exit(128 + number)
        told = True
        if started is not None:
            started.stop()
        elif starting is not None:
            starting.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, tell, number)
    try:
        async with make() as service, notify_lifecycle():
            started = service
            # What the start has left lives as long as the process: looking through all of it
            # again would hold up every request for tens of milliseconds now and then.
            gc.freeze()
            await service.wait_stopped()
    except asyncio.CancelledError:
        # Told to stop while it was still starting: that is no error either.
        if not told:
            raise
