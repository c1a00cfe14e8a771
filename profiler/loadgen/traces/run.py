"""Trace runs against a gateway with the client SDK, and the search for the highest goodput."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from profiler.loadgen.library import samples_for
from profiler.loadgen.traces.request_log import (
    RequestLog,
    RunSummary,
    VariantFigures,
    read_accuracies,
    summarise,
    variant_figures,
)
from profiler.loadgen.traces.search import RateTrial, find_goodput
from synergai.client.client import Client
from synergai.errors import DeadlineExceeded, InvalidInput, Overloaded, SynergaiError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from profiler.loadgen.traces.load_settings import LoadSettings
    from profiler.loadgen.traces.search import SearchResult


WARM_UP_S: Final = 60.0
"""Deadline of warm-up requests; the first one may wait for the engine to load."""


@dataclass(frozen=True, slots=True)
class TraceRun:
    """Results of a trace run.

    Attributes:
        origin: human-readable description of the inputs.
        variants: figures by variant; None if the engine has none.
    """

    log: RequestLog
    figures: RunSummary
    origin: str
    variants: VariantFigures | None


async def run_trace(settings: LoadSettings, progress: Callable[[int], None]) -> TraceRun:
    """Send a trace's requests and wait for their outcomes."""
    instants = list(settings.arrivals())
    if not instants:
        raise InvalidInput("the trace has no requests; raise its rate or its duration")
    async with _client(settings) as client:
        send, origin = await _warm_up(client, settings)
        log = await send_open_loop(
            send, instants, deadline_s=_deadline_s(settings), progress=progress
        )
        variants = None
        if any("." in version for version in log.versions):
            accuracies = await read_accuracies(client, settings.engine)
            variants = variant_figures(log, accuracies, settings.min_accuracy)
    figures = _figures(settings, log, settings.curve().duration)
    return TraceRun(log, figures, origin, variants)


async def search_goodput(
    settings: LoadSettings, report: Callable[[RateTrial], None]
) -> SearchResult:
    """Search for the highest rate at which enough requests meet the deadline."""
    if settings.deadline_ms is None:
        raise InvalidInput("--find-goodput requires --deadline-ms")
    if settings.trace not in ("constant", "poisson"):
        raise InvalidInput("--find-goodput requires a constant rate: --trace poisson or constant")
    async with _client(settings) as client:
        send, _ = await _warm_up(client, settings)
        made = 0

        async def run_trial(rate: float) -> RateTrial:
            nonlocal made
            # A new seed each time, so that one cluster of arrivals does not decide every trial.
            trial = replace(settings, rate=rate, seed=settings.seed + made)
            made += 1
            instants = list(trial.arrivals())
            log = await send_open_loop(send, instants, deadline_s=_deadline_s(settings))
            found = RateTrial.of(rate, _figures(settings, log, settings.duration))
            report(found)
            if found.failed:
                await _check_recovered(send, found)
            return found

        return await find_goodput(
            run_trial,
            first=settings.rate,
            lowest=1 / settings.duration,
            attainment=settings.attainment,
            precision=settings.precision,
            trials=settings.trials,
        )


def _client(settings: LoadSettings) -> Client:
    # No retries, which would hide failures, and no limit in flight: the loop is open.
    return Client(settings.target, attempts=1, in_flight=sys.maxsize, **settings.connection())


async def _warm_up(client: Client, settings: LoadSettings) -> tuple[Send, str]:
    """Warm up the engine; return a sender of requests and a description of the inputs."""
    engine = await client.engine(settings.engine)
    samples, origin = samples_for(engine, settings.models, settings.samples)
    inputs = samples.inputs

    async def send(number: int, deadline: float | None) -> str:
        result = await client.infer(
            settings.engine,
            inputs[number % len(inputs)],
            deadline=deadline,
            min_accuracy=settings.min_accuracy,
        )
        return result.version

    for number in range(settings.warm_up):
        await _send_probe(send, number)
    return send, origin


async def _send_probe(send: Send, number: int) -> None:
    """Send a request outside of a run."""
    # A gateway still busy with an earlier run may reject it; the run itself will show.
    with suppress(DeadlineExceeded, Overloaded):
        await send(number, WARM_UP_S)


async def _check_recovered(send: Send, trial: RateTrial) -> None:
    """Check that the gateway serves a request after some failed in a trial."""
    try:
        await _send_probe(send, 0)
    except SynergaiError as error:
        raise Unavailable(
            f"the search was aborted at {trial.rate:.4g} requests/s: {trial.failed:,} of "
            f"{trial.requests:,} requests failed, and so did one sent after them: {error}"
        ) from None


def _deadline_s(settings: LoadSettings) -> float:
    return math.inf if settings.deadline_ms is None else settings.deadline_ms / 1e3


def _figures(settings: LoadSettings, log: RequestLog, seconds: float) -> RunSummary:
    return summarise(log, seconds, settings.late_ms / 1e3, settings.late_share)


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
