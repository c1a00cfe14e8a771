"""Load with kills, floods and misbehaving clients, and the oracle of its script."""

import math
import random
from collections.abc import Callable

import pytest

from tests.acceptance.fault_soak import (
    Interval,
    Requests,
    Sample,
    find_goodput_errors,
    find_resource_errors,
    slope_interval,
)
from tests.acceptance.processes import Usage
from tests.acceptance.scripts import run_script

SECONDS = 889
"""Sampled time of a run of half an hour."""


@pytest.mark.parametrize(
    ("used", "error"),
    [
        pytest.param(lambda _: Usage(90_000_000, 40, 16), "", id="flat"),
        pytest.param(lambda s: Usage(90_000_000, 40 + s % 9 * 20, 16), "", id="floods"),
        pytest.param(lambda s: Usage(90_000_000 + 500 * s, 40, 16), "MB/h", id="1.8 MB per hour"),
        pytest.param(lambda s: Usage(90_000_000, 40 + s // 60, 16), "descriptors", id="files"),
        pytest.param(lambda s: Usage(90_000_000, 40, 16 + s // 100), "threads", id="threads"),
    ],
)
def test_steady_growth_is_an_error(used: Callable[[int], Usage], error: str) -> None:
    found = find_resource_errors([Sample(float(s), used(s)) for s in range(SECONDS)])
    assert len(found) == bool(error)
    assert all(error in line for line in found)


@pytest.mark.parametrize("per_hour", [0, 2_000_000, 20_000_000])
def test_interval_of_the_growth_contains_it_although_floods_last_for_many_samples(
    per_hour: int,
) -> None:
    noise = random.Random(1)
    flood = 0.0
    samples = []
    for second in range(SECONDS):
        flood = 0.95 * flood + noise.gauss(0.0, 300_000.0)
        rss = 90_000_000 + int(flood) + per_hour * second // 3600
        samples.append(Sample(float(second), Usage(rss, 40, 16)))
    low, high = slope_interval(samples)
    assert low <= per_hour / 1e6 <= high
    assert high - low < 20.0


def test_growth_of_a_few_minutes_is_unknown() -> None:
    samples = [Sample(float(s), Usage(90_000_000 + s, 40, 16)) for s in range(180)]
    assert slope_interval(samples) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("failing", "fails"), [(range(50, 60), False), (range(50, 85), True), (range(0), False)]
)
def test_goodput_does_not_count_the_seconds_around_a_kill(failing: range, *, fails: bool) -> None:
    requests = Requests(
        sent_at=[float(s) for s in range(100)],
        good_at=[float(s) for s in range(100) if s not in failing],
    )
    assert bool(find_goodput_errors({"gold": requests}, [Interval(49.0, 61.0)])) is fails


def test_fleet_withstands_faults_of_all_kinds_at_once() -> None:
    run_script("fault_soak.py", "--minutes", "3")
