"""Searches the highest rate that is still served well. Knows nothing of how a rate is tried."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MAX_RATES: Final = 30
"""However far the first rate is off: enough to find one a hundred thousand times as high."""


class Verdict(enum.Enum):
    """What trials at a rate showed."""

    MET = "met"
    MISSED = "missed"
    UNTRIED = "untried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial at a rate.

    Attributes:
        rate: requests per second.
        attainment: share of the requests that were answered in time.
        goodput: answers in time per second.
        is_valid: the generator kept to the rate.
        requests: how many were sent.
        failed: how many of them failed, for another reason than that there was too much to do.
        first_failure: why the first of these did; empty if there is none.
    """

    rate: float
    attainment: float
    goodput: float
    is_valid: bool
    requests: int
    failed: int
    first_failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """A search from its first trial to its last.

    Attributes:
        rate: the highest rate that was met, in requests per second; 0 if none was.
        above: the lowest one that was not; infinite if all were, or nobody could say.
        trials: all that were made, in order.
        limited_by_generator: higher rates could not be tried from this machine.
    """

    rate: float
    above: float
    trials: tuple[Trial, ...]
    limited_by_generator: bool


async def find_goodput(
    attempt: Callable[[float], Awaitable[Trial]],
    *,
    first: float,
    lowest: float,
    attainment: float,
    precision: float,
    trials: int,
) -> SearchResult:
    """Double or halve the rate until the goal lies between two, then halve what is between them.

    At each rate most of the trials decide, since one alone may be hit by a passing disturbance; no
    more are made than it takes for that.

    Args:
        attempt: makes one trial.
        first: the rate to begin with.
        lowest: no rate below this one is tried: a trial would have no requests.
        attainment: the goal.
        precision: the search ends when the two rates are so near, as a share of the lower one.
        trials: how many may be made at each rate.
    """
    made: list[Trial] = []

    async def verdict(rate: float) -> Verdict:
        met = missed = late = 0
        while 2 * max(met, missed, late) <= trials and met + missed < trials:
            trial = await attempt(rate)
            made.append(trial)
            if trial.attainment >= attainment:
                # Requests that were sent late and answered in time all the same prove it, too.
                met += 1
            elif trial.is_valid:
                missed += 1
            else:
                late += 1
        if 2 * late > trials:
            return Verdict.UNTRIED
        return Verdict.MET if met > missed else Verdict.MISSED

    low, high, limited = 0.0, math.inf, False
    lowest_missed = math.inf
    rate = first
    tried = 0
    while high - low > precision * low and rate >= lowest and tried < MAX_RATES:
        tried += 1
        found = await verdict(rate)
        if found is Verdict.MET:
            low = rate
        else:
            high, limited = rate, found is Verdict.UNTRIED
            if found is Verdict.MISSED:
                lowest_missed = rate  # each is below those that were missed before
        if high == math.inf:
            rate = 2 * low
        elif low == 0:
            rate = high / 2
        else:
            rate = (low + high) / 2
    return SearchResult(
        rate=low,
        above=lowest_missed,
        trials=tuple(made),
        limited_by_generator=limited,
    )
