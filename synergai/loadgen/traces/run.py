"""A trace against a gateway, by the SDK that users have; and the search for the goodput."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.client.client import Client
from synergai.errors import (
    DeadlineExceeded,
    InvalidInput,
    Overloaded,
    SynergaiError,
    Unavailable,
)
from synergai.loadgen.sample_set import samples_for
from synergai.loadgen.traces.driver import send_open_loop
from synergai.loadgen.traces.request_log import RequestLog, RunSummary, summarise
from synergai.loadgen.traces.search import Trial, find_goodput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from synergai.client.streaming import InferResult
    from synergai.loadgen.traces.driver import Ask
    from synergai.loadgen.traces.search import SearchResult
    from synergai.loadgen.traces.settings import LoadSettings

WARM_UP_S: Final = 60.0
"""The first request may have to wait until the engine is loaded."""


@dataclass(frozen=True, slots=True)
class TraceRun:
    """A finished run.

    Attributes:
        ledger: every request.
        figures: what follows from it.
        origin: where the inputs are from, for people.
    """

    log: RequestLog
    figures: RunSummary
    origin: str


async def run_trace(settings: LoadSettings, progress: Callable[[int], None]) -> TraceRun:
    """Send a trace's requests, and wait for what becomes of them.

    Raises:
        InvalidInput: the trace or the inputs are not as they have to be.
        SynergaiError: the gateway could not be asked at all.
    """
    instants = list(settings.arrivals())
    if not instants:
        raise InvalidInput("the trace has no request; raise its rate or its duration")
    async with _client(settings) as client:
        ask, origin = await _asking(client, settings)
        log = await send_open_loop(
            ask, instants, deadline_s=_deadline_s(settings), progress=progress
        )
    return TraceRun(log, _figures(settings, log, settings.curve().duration), origin)


async def search_goodput(settings: LoadSettings, report: Callable[[Trial], None]) -> SearchResult:
    """Search the highest rate at which enough requests meet the deadline.

    Args:
        settings: of the search.
        report: told of each trial.

    Raises:
        InvalidInput: there is no deadline, or the trace is not one of a constant rate.
        Unavailable: requests failed in a trial, and after it the gateway still cannot serve one.
        SynergaiError: the gateway could not be asked at all.
    """
    if settings.deadline_ms is None:
        raise InvalidInput("--find-goodput needs the deadline that is to be met: --deadline-ms")
    if settings.trace not in ("constant", "poisson"):
        raise InvalidInput("--find-goodput tries constant rates: --trace poisson or constant")
    async with _client(settings) as client:
        ask, _ = await _asking(client, settings)
        made = 0

        async def attempt(rate: float) -> Trial:
            nonlocal made
            # Another seed each time: one unlucky cluster of arrivals must not decide every trial.
            trial = settings.model_copy(update={"rate": rate, "seed": settings.seed + made})
            made += 1
            instants = list(trial.arrivals())
            log = await send_open_loop(ask, instants, deadline_s=_deadline_s(settings))
            figures = _figures(settings, log, settings.duration)
            found = Trial(
                rate=rate,
                attainment=figures.attainment if instants else 1.0,
                goodput=figures.goodput,
                is_valid=figures.send_delay.is_valid,
                requests=figures.requests,
                failed=figures.failed,
                first_failure=figures.first_failure,
            )
            report(found)
            if found.failed:
                await _check(ask, found)
            return found

        return await find_goodput(
            attempt,
            first=settings.rate,
            lowest=1 / settings.duration,
            attainment=settings.attainment,
            precision=settings.precision,
            trials=settings.trials,
        )


def _client(settings: LoadSettings) -> Client:
    # One attempt: a request that the SDK tries again by itself would hide what the first met.
    # Nor may it hold any back: the loop is open.
    return Client(settings.target, attempts=1, in_flight=sys.maxsize, tls_ca=settings.tls_ca)


async def _asking(client: Client, settings: LoadSettings) -> tuple[Ask, str]:
    """What sends a request, with the engine loaded, and where the inputs are from."""
    engine = await client.engine(settings.engine)
    samples, origin = samples_for(engine, settings.models, settings.samples)
    inputs = samples.inputs

    def ask(number: int, deadline: float | None) -> Awaitable[InferResult]:
        return client.infer(
            settings.engine,
            inputs[number % len(inputs)],
            deadline=deadline,
            priority=settings.priority,
        )

    for number in range(settings.warm_up):
        await _ask_aside(ask, number)
    return ask, origin


async def _ask_aside(ask: Ask, number: int) -> None:
    """Ask outside of a run.

    Raises:
        SynergaiError: the request failed.
    """
    # A gateway that is still busy with another run may refuse; the run itself will tell.
    with suppress(DeadlineExceeded, Overloaded):
        await ask(number, WARM_UP_S)


async def _check(ask: Ask, trial: Trial) -> None:
    """Check that a gateway some of whose requests failed in a trial can serve one now.

    Raises:
        Unavailable: it cannot, so that lower rates would fail as well and tell nothing.
    """
    try:
        await _ask_aside(ask, 0)
    except SynergaiError as error:
        raise Unavailable(
            f"the search ended at {trial.rate:.4g} requests/s, where {trial.failed:,} of "
            f"{trial.requests:,} requests failed, and one more after them: {error}"
        ) from None


def _deadline_s(settings: LoadSettings) -> float:
    return math.inf if settings.deadline_ms is None else settings.deadline_ms / 1e3


def _figures(settings: LoadSettings, log: RequestLog, seconds: float) -> RunSummary:
    return summarise(log, seconds, settings.late_ms / 1e3, settings.late_share)
