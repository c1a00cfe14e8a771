"""What the scripts of this folder count as an error."""

import math
import random
from collections.abc import Callable

import pytest

from tests.acceptance import soak
from tests.acceptance.fault_soak import (
    Interval,
    Requests,
    Sample,
    find_goodput_errors,
    find_resource_errors,
    slope_interval,
)
from tests.acceptance.malformed import Observations, find_errors
from tests.acceptance.processes import Usage

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


USED = Usage(rss=90 << 20, descriptors=40, threads=16)


def observed() -> Observations:
    seen = Observations()
    seen.tally.count("clients, unary", "INVALID_ARGUMENT", "a call", b"", 1000)
    seen.honest["gRPC"] = 100
    seen.before, seen.after = {"gateway": USED}, {"gateway": USED}
    return seen


def with_usage(**changes: int) -> Callable[[Observations], None]:
    fields = {name: getattr(USED, name) for name in Usage.__slots__} | changes

    def change(seen: Observations) -> None:
        seen.after = {"gateway": Usage(**fields)}

    return change


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda _: None, ""),
        (lambda seen: seen.tally.count("clients, unary", "UNKNOWN", "a call"), "UNKNOWN"),
        (lambda seen: seen.tally.count("hub, unary", "INTERNAL", "a call"), "INTERNAL"),
        (lambda seen: seen.tally.count("HTTP", "500", "a request"), "500"),
        (lambda seen: seen.tally.count("HTTP", "no answer", "a request"), "no answer"),
        (lambda seen: seen.wrong.append("gRPC: wrong answer"), "wrong answer"),
        (lambda seen: seen.honest.update({"REST": 0}), "REST: only 0"),
        (lambda seen: seen.dead.append("worker, host 1"), "worker, host 1 died"),
        (lambda seen: seen.bugs.append("gateway.log, line 3: Traceback"), "Traceback"),
        (with_usage(rss=120 << 20), "rss"),
        (with_usage(descriptors=60), "descriptors"),
        (with_usage(threads=30), "threads"),
    ],
)
def test_each_fault_is_an_error(fault: Callable[[Observations], None], text: str) -> None:
    seen = observed()
    fault(seen)
    found = find_errors(seen)
    assert any(text in line for line in found) if text else not found


@pytest.mark.parametrize(
    ("megabytes", "grows"),
    [
        pytest.param(lambda _: 70.0, False, id="flat"),
        pytest.param(lambda i: 70.0 + 30.0 * (i > 50), False, id="one step"),
        pytest.param(lambda i: 70.0 + 0.2 * min(i, 20), False, id="only during warm-up"),
        pytest.param(lambda i: 70.0 + 0.16 * i, True, id="sixteen bytes per request"),
    ],
)
def test_only_growth_after_the_warm_up_is_an_error(
    megabytes: Callable[[int], float], *, grows: bool
) -> None:
    samples = [soak.Sample(i * 10_000, {"gateway": int(megabytes(i) * 1e6)}) for i in range(1, 101)]
    found = soak.find_errors({"gateway": 70_000_000, "agent": 50_000_000}, samples)
    assert bool(found) is grows, found
