"""Trace runs against a gateway with the client SDK, and the search for the highest goodput."""

from __future__ import annotations

import asyncio
import enum
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

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
from synergai.client.client import Client
from synergai.errors import DeadlineExceeded, InvalidInput, Overloaded, SynergaiError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from profiler.loadgen.loadgen_settings import LoadSettings


MAX_RATES: Final = 30
"""Limit of tried rates: enough to reach one a hundred thousand times the first."""


class TrialVerdict(enum.Enum):
    """Verdict of the trials at a rate; INVALID if the generator could not send it."""

    MET = "met"
    MISSED = "missed"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTrial:
    """Result of one trial at a rate.

    Attributes:
        attainment: share of requests with a response in time.
        goodput: responses in time per second.
        latency_s: latency of completed requests by percentile; empty if there were none.
        is_valid: the generator kept to the rate.
        failed: number of requests with `Outcome.FAILED`.
        first_failure: error of the first of these; empty if there is none.
    """

    rate: float
    attainment: float
    goodput: float
    latency_s: dict[float, float]
    is_valid: bool
    requests: int
    failed: int
    first_failure: str

    @classmethod
    def of(cls, rate: float, run: RunSummary) -> Self:
        """Return the result of a trial; one without requests has met the goal."""
        return cls(
            rate=rate,
            attainment=run.attainment if run.requests else 1.0,
            goodput=run.goodput,
            latency_s=run.latency_s,
            is_valid=run.send_delay.is_valid,
            requests=run.requests,
            failed=run.failed,
            first_failure=run.first_failure,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Result of a search.

    Attributes:
        rate: highest rate that met the goal, in requests per second; 0 if none did.
        above: lowest rate that missed the goal; infinite if none did or could be tried.
        limited_by_generator: this machine could not send at higher rates.
    """

    rate: float
    above: float
    trials: tuple[RateTrial, ...]
    limited_by_generator: bool


async def find_goodput(
    run_trial: Callable[[float], Awaitable[RateTrial]],
    *,
    first: float,
    lowest: float,
    attainment: float,
    precision: float,
    trials: int,
) -> SearchResult:
    """Bracket the goal by doubling or halving the rate, then bisect.

    The majority of trials decides at each rate, to tolerate passing disturbances; trials stop
    once there is a majority.

    Args:
        first: rate of the first trial.
        lowest: lowest rate to try; below it, a trial would have no requests.
        attainment: the goal, as a share of requests.
        precision: width of the final bracket as a share of its lower end.
        trials: limit of trials at each rate.
    """
    made: list[RateTrial] = []

    async def verdict(rate: float) -> TrialVerdict:
        met = missed = late = 0
        while 2 * max(met, missed, late) <= trials and met + missed < trials:
            trial = await run_trial(rate)
            made.append(trial)
            if trial.attainment >= attainment:
                # Also if requests were sent late: latency counts from the due time.
                met += 1
            elif trial.is_valid:
                missed += 1
            else:
                late += 1
        if 2 * late > trials:
            return TrialVerdict.INVALID
        return TrialVerdict.MET if met > missed else TrialVerdict.MISSED

    low, high, limited = 0.0, math.inf, False
    lowest_missed = math.inf
    rate = first
    tried = 0
    while high - low > precision * low and rate >= lowest and tried < MAX_RATES:
        tried += 1
        found = await verdict(rate)
        if found is TrialVerdict.MET:
            low = rate
        else:
            high, limited = rate, found is TrialVerdict.INVALID
            if found is TrialVerdict.MISSED:
                lowest_missed = rate  # lower than all rates missed before
        rate = _between(low, high)
    return SearchResult(
        rate=low,
        above=lowest_missed,
        trials=tuple(made),
        limited_by_generator=limited,
    )


def _between(low: float, high: float) -> float:
    """Return the next rate to try between one that met the goal and one that did not."""
    if high == math.inf:
        return 2 * low
    return (low + high) / 2


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
    # No retries, which would hide failures. The loop is open up to 8 connections of 256 calls each.
    return Client(settings.target, attempts=1, **settings.connection())


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
