"""Searches the highest rate that is still served well. Knows nothing of how a rate is tried."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MOST_DOUBLINGS: Final = 20
"""Both ways: a million times the first rate, or a millionth of it."""


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
    """

    rate: float
    attainment: float
    goodput: float
    is_valid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
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
    attainment: float,
    precision: float,
    trials: int,
) -> Found:
    """Double or halve the rate until the goal lies between two, then halve what is between them.

    At each rate most of the trials decide, since one alone may be hit by a passing disturbance; no
    more are made than it takes for that.

    Args:
        attempt: makes one trial.
        first: the rate to begin with.
        attainment: the goal.
        precision: the search ends when the two rates are so near, as a share of the lower one.
        trials: how many may be made at each rate.
    """
    made: list[Trial] = []

    async def verdict(rate: float) -> Verdict:
        met = missed = 0
        while 2 * met <= trials and 2 * missed <= trials and met + missed < trials:
            trial = await attempt(rate)
            made.append(trial)
            if trial.attainment >= attainment:
                # Requests that were sent late and answered in time all the same prove it, too.
                met += 1
            elif trial.is_valid:
                missed += 1
            else:
                return Verdict.UNTRIED
        return Verdict.MET if met > missed else Verdict.MISSED

    low, high, limited = 0.0, float("inf"), False
    rate = first
    for _ in range(MOST_DOUBLINGS):
        found = await verdict(rate)
        if found is Verdict.MET:
            low = rate
            rate = 2 * low
        else:
            limited = found is Verdict.UNTRIED
            high = rate
            rate = high / 2
        if low and high < float("inf"):
            break
    while low and high - low > precision * low and high < float("inf"):
        rate = (low + high) / 2
        found = await verdict(rate)
        if found is Verdict.MET:
            low = rate
        else:
            limited = found is Verdict.UNTRIED
            high = rate
    return Found(
        rate=low,
        above=float("inf") if limited else high,
        trials=tuple(made),
        limited_by_generator=limited,
    )
