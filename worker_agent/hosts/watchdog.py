"""Watchdog of an engine host: detects that it has been silent for too long while it has runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_agent.hosts.connection import Connection
    from worker_agent.hosts.loads import Loads
    from worker_agent.hosts.runs import Runs


class Watchdog:
    """A timer that runs only while runs are in flight."""

    def __init__(
        self,
        connection: Connection,
        runs: Runs,
        loads: Loads,
        timeout_s: float,
        on_silent: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._runs = runs
        self._loads = loads
        self._timeout_s = timeout_s
        self._on_silent = on_silent
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the host, if it is not watched already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._watch)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        self._timer = None
        if not self._runs.by_id or self._connection.lost.is_set():
            return
        left = self._connection.heard_at + self._timeout_s - self._loop.time()
        if self._loads.loading is not None:  # loading has a limit of its own
            left = self._timeout_s
        if left > 0:
            self._timer = self._loop.call_later(left, self._watch)
        else:
            self._on_silent()
