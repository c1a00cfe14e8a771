"""Words with systemd: up, still alive, about to stop (``Type=notify``, see sd_notify(3))."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Tell the service manager, if there is one; ``READY=1`` and the like.

    Nothing depends on it here, so that a manager that does not listen is only logged.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name in the abstract namespace
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as line:
            line.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("the service manager cannot be told %s: %s", state, error)


def watchdog_s() -> float | None:
    """How often the service manager wants a sign of life of this process, in seconds, if at all."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    wanted = os.environ.get("WATCHDOG_USEC", "")
    return int(wanted) / 1e6 if wanted.isdecimal() and int(wanted) > 0 else None


@contextlib.asynccontextmanager
async def notify_lifecycle() -> AsyncIterator[None]:
    """Say that the service is up; while this lasts, that it is alive; and then that it stops.

    The signs of life come from the event loop itself: one that hangs sends none, and the manager
    restarts the service.
    """
    interval = watchdog_s()
    alive = None if interval is None else asyncio.create_task(_signs_of_life(interval / 3))
    notify("READY=1")
    try:
        yield
    finally:
        notify("STOPPING=1")
        if alive is not None:
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)


async def _signs_of_life(interval: float) -> None:
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval)
