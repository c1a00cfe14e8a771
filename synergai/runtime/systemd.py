"""Notifications to systemd (``Type=notify``, see sd_notify(3)): readiness, watchdog, stopping."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING

from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send `state`, such as ``READY=1``, to the service manager if there is one.

    Failures are only logged.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name in the abstract namespace
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as connection:
            connection.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("cannot send %s to the service manager: %s", state, error)


def watchdog_timeout_s() -> float | None:
    """Return the watchdog timeout in seconds that systemd set for this process, if any."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    timeout = os.environ.get("WATCHDOG_USEC", "")
    return int(timeout) / 1e6 if timeout.isdecimal() and int(timeout) > 0 else None


@contextlib.asynccontextmanager
async def notify_lifecycle() -> AsyncIterator[None]:
    """Notify systemd as `notify_ready` does, and of stopping on exit."""
    async with notify_ready():
        try:
            yield
        finally:
            notify("STOPPING=1")


@contextlib.asynccontextmanager
async def notify_ready() -> AsyncIterator[None]:
    """Notify systemd of readiness, and feed the watchdog as long as the context is open.

    The watchdog is fed from the event loop, so a blocked loop gets the service restarted.
    """
    timeout = watchdog_timeout_s()
    async with TaskBag() as tasks:
        if timeout is not None:
            tasks.start(_feed_watchdog(timeout / 3))
        notify("READY=1")
        yield


async def _feed_watchdog(interval: float) -> None:
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval)
