"""What the fault soak reports as an error."""

from collections.abc import Callable

import pytest

from tests.acceptance.fault_soak import (
    Interval,
    Requests,
    Sample,
    find_goodput_errors,
    find_resource_errors,
)
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


@pytest.mark.parametrize(
    ("failing", "fails"), [(range(50, 60), False), (range(50, 85), True), (range(0), False)]
)
def test_goodput_does_not_count_the_seconds_around_a_kill(failing: range, *, fails: bool) -> None:
    requests = Requests(
        sent_at=[float(s) for s in range(100)],
        good_at=[float(s) for s in range(100) if s not in failing],
    )
    assert bool(find_goodput_errors({"gold": requests}, [Interval(49.0, 61.0)])) is fails
