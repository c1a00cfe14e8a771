"""Open-loop sender of a trace's requests, each in its own task."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from profiler.loadgen.traces.request_log import RequestLog
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

START_DELAY_S: Final = 0.05
"""Time before the first request is due, so that it is not late either."""
_YIELD_EVERY: Final = 64
"""Number of requests started between yields to the event loop while sending is behind."""


Send: TypeAlias = "Callable[[int, float | None], Awaitable[str]]"
"""Sends one request, given its number from 0 and the seconds to its deadline (None for none), and
returns the version of the engine that answered; raises `SynergaiError` if it fails."""


async def send_open_loop(
    send: Send,
    arrivals: Iterable[float],
    *,
    deadline_s: float = math.inf,
    progress: Callable[[int], None] = lambda _: None,
) -> RequestLog:
    """Send requests at `arrivals` and return the log once all have ended.

    Requests never wait for responses to earlier ones. A request that is sent late has less time
    left until its deadline, as if its user had waited.
    """
    log = RequestLog()
    # Not the loop's own clock, which is cached for each iteration.
    began = time.monotonic() + START_DELAY_S

    async def request(number: int, due: float) -> None:
        sent_at = time.monotonic() - began
        left_s = max(0.0, due + deadline_s - sent_at)
        error, version = None, ""
        try:
            version = await send(number, left_s if math.isfinite(left_s) else None)
        except SynergaiError as failure:
            error = failure
        ended = time.monotonic() - began
        log.record(
            due=due,
            sent=sent_at,
            ended=ended,
            deadline_s=deadline_s,
            error=error,
            version=version,
        )

    async with asyncio.TaskGroup() as requests:
        for number, due in enumerate(arrivals):
            if number % _YIELD_EVERY == 0:
                progress(number)
                await asyncio.sleep(0)
            # The loop's timers have millisecond resolution and may fire slightly early.
            while (ahead_s := began + due - time.monotonic()) > 0:  # noqa: ASYNC110 - for a time
                await asyncio.sleep(ahead_s)
            requests.create_task(request(number, due))
    return log
