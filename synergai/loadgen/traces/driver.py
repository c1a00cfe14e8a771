"""Sends a trace's requests when they are due, each in a task of its own."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.errors import SynergaiError
from synergai.loadgen.traces.request_log import RequestLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

START_S: Final = 0.05
"""Before the first request is due, so that not even that one is sent late."""
_TURN: Final = 64
"""So many requests that are late already are begun before others get their turn of the loop."""


Ask: TypeAlias = "Callable[[int, float | None], Awaitable[object]]"
"""Sends one request, told its number from 0 and the seconds that are left of its deadline, if it
has one; raises the `SynergaiError` that it ended with."""


async def send_open_loop(
    ask: Ask,
    arrivals: Iterable[float],
    *,
    deadline_s: float = math.inf,
    progress: Callable[[int], None] = lambda _: None,
) -> RequestLog:
    """Send requests at `arrivals`, and return once all of them have ended.

    Nothing is held back: what the gateway does not answer does not keep the next one from being
    sent. A request that is sent late has that much less time, as if its user had waited.

    Args:
        ask: sends one request.
        arrivals: when they are due, in order, in seconds from the beginning.
        deadline_s: within which answers are wanted, from when they are due.
        progress: told how many were sent, every now and then.
    """
    log = RequestLog()
    # Not the loop's own clock: that one stands still during a turn.
    began = time.monotonic() + START_S

    async def request(number: int, due: float) -> None:
        sent = time.monotonic() - began
        left_s = max(0.0, due + deadline_s - sent)
        error = None
        try:
            await ask(number, left_s if math.isfinite(left_s) else None)
        except SynergaiError as failure:
            error = failure
        ended = time.monotonic() - began
        log.add(due=due, sent=sent, ended=ended, deadline_s=deadline_s, error=error)

    async with asyncio.TaskGroup() as requests:
        for number, due in enumerate(arrivals):
            if number % _TURN == 0:
                progress(number)
                await asyncio.sleep(0)
            # A loop counts in milliseconds, and may wake up a little early.
            while (ahead_s := began + due - time.monotonic()) > 0:  # noqa: ASYNC110 - for a time
                await asyncio.sleep(ahead_s)
            requests.create_task(request(number, due))
    return log
