"""Search for the highest rate that meets a goal, independent of how a trial is run."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from profiler.loadgen.traces.request_log import RunSummary

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
