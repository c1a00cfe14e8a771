import math
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.loadgen.traces.run import RateTrial, SearchResult, find_goodput


def capacity(
    capacity: float, *, generator: float = math.inf, unlucky: int = 0
) -> Callable[[float], Awaitable[RateTrial]]:
    """Return a simulated trial.

    Args:
        capacity: requests per second that the gateway serves in time.
        generator: requests per second that are sent in time.
        unlucky: every n-th trial fails; 0 for none.
    """
    made = 0

    async def run_trial(rate: float) -> RateTrial:
        nonlocal made
        made += 1
        is_met = rate <= min(capacity, generator) and not (unlucky and made % unlucky == 0)
        return RateTrial(
            rate=rate,
            attainment=1.0 if is_met else 0.5,
            goodput=rate,
            latency_s={50.0: 0.01, 99.0: 0.02} if is_met else {},
            is_valid=rate <= generator,
            requests=100,
            failed=0,
            first_failure="",
        )

    return run_trial


async def search(
    run_trial: Callable[[float], Awaitable[RateTrial]], first: float = 10.0
) -> SearchResult:
    return await find_goodput(
        run_trial, first=first, lowest=0.01, attainment=0.99, precision=0.05, trials=3
    )


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e3))
@settings(max_examples=50)
async def test_rate_is_found_to_the_precision(limit: float, first: float) -> None:
    found = await search(capacity(limit), first)
    assert found.rate <= limit < found.above
    assert found.above <= found.rate * 1.05 * (1 + 1e-9)
    assert not found.limited_by_generator


async def test_single_unlucky_trial_does_not_decide() -> None:
    found = await search(capacity(100.0, unlucky=3))
    assert found.rate == pytest.approx(100.0, rel=0.06)


async def test_single_trial_sent_late_does_not_decide() -> None:
    steady, made = capacity(100.0), 0

    async def run_trial(rate: float) -> RateTrial:
        nonlocal made
        made += 1
        trial = await steady(rate)
        return replace(trial, attainment=0.5, is_valid=False) if made % 3 == 0 else trial

    found = await search(run_trial)
    assert found.rate == pytest.approx(100.0, rel=0.06)
    assert not found.limited_by_generator


async def test_trials_stop_at_a_majority() -> None:
    found = await search(capacity(100.0))
    rates = [trial.rate for trial in found.trials]
    assert all(rates.count(rate) == 2 for rate in rates)


async def test_rate_that_cannot_be_sent_is_not_a_miss() -> None:
    found = await search(capacity(1e9, generator=75.0))
    assert found.limited_by_generator
    assert found.above == math.inf
    assert found.rate == pytest.approx(75.0, rel=0.06)


async def test_missed_rate_stays_the_bound_when_a_lower_rate_is_sent_late() -> None:
    gateway = capacity(70.0)

    async def run_trial(rate: float) -> RateTrial:
        trial = await gateway(rate)
        return trial if rate in (40.0, 80.0) else replace(trial, attainment=0.5, is_valid=False)

    found = await search(run_trial, first=40.0)
    assert (found.rate, found.above) == (40.0, 80.0)


async def test_rate_of_a_gateway_that_serves_nothing_is_zero() -> None:
    found = await search(capacity(0.0))
    assert found.rate == 0
    assert min(trial.rate for trial in found.trials) >= 0.01


async def test_search_ends_for_a_gateway_without_limits() -> None:
    found = await search(capacity(math.inf))
    assert (found.rate, found.above) == (10.0 * 2**29, math.inf)
