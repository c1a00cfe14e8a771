"""The interval around an estimate."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.jobs.estimate_interval import LEAST, PRIOR, WINDOW, EstimateInterval


def learned(*ratios: float) -> EstimateInterval:
    interval = EstimateInterval()
    for ratio in ratios:
        interval.add(2.0, 2.0 * ratio)
    return interval


def test_prior_holds_until_enough_jobs_have_completed() -> None:
    assert learned().around(10.0) == tuple(10.0 * ratio for ratio in PRIOR)
    assert learned(*[1.0] * (LEAST - 1)).around(10.0) == tuple(10.0 * ratio for ratio in PRIOR)
    assert learned(*[1.0] * LEAST).around(10.0) == (10.0, 10.0)


def test_jobs_outside_of_the_prior_widen_it() -> None:
    assert learned(0.5, 1.0, 4.0).around(10.0) == (5.0, 40.0)


def test_jobs_without_an_estimate_or_completion_teach_nothing() -> None:
    interval = EstimateInterval()
    for _ in range(LEAST):
        interval.add(None, 9.0)
        interval.add(0.0, 9.0)
        interval.add(1.0, None)
    assert interval.around(1.0) == PRIOR


def test_interval_follows_the_last_jobs() -> None:
    assert learned(*[1.0] * WINDOW, *[3.0] * WINDOW).around(1.0) == pytest.approx((3.0, 3.0))


@settings(max_examples=15, deadline=None)
@given(
    st.floats(0.5, 2.0), st.floats(0.02, 0.6), st.integers(0, 1 << 32), st.sampled_from([19, 200])
)
def test_interval_holds_nine_of_ten_further_jobs(
    median: float, deviation: float, seed: int, completed: int
) -> None:
    """The mean over gateways: that of a single one varies with the jobs it has learned from."""
    draw = random.Random(seed)

    def ratio() -> float:
        return median * math.exp(deviation * draw.gauss(0, 1))

    held = 0
    for _ in range(200):
        low, high = learned(*(ratio() for _ in range(completed))).around(1.0)
        held += sum(low <= ratio() <= high for _ in range(20))
    assert 0.85 <= held / 4000 <= 0.95
