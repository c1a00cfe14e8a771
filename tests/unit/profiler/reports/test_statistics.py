"""Statistics of the reports, against values computed by hand."""

import math

import pytest

from profiler.reports.statistics import (
    Distribution,
    geometric_mean,
    harmonic_mean,
    mean,
    pearson,
    ratio,
)
from profiler.reports.wording import duration, number


def test_distribution_interpolates_between_values() -> None:
    box = Distribution.of([1.0, 2.0, 3.0, 4.0, 10.0])
    assert (box.low, box.lower, box.median, box.upper, box.high) == (1.0, 2.0, 3.0, 4.0, 10.0)
    assert (box.count, box.mean) == (5, 4.0)
    assert box.p99 == pytest.approx(9.76)  # 0.96 of the way from 4 to 10


def test_distribution_needs_a_value() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        Distribution.of([])


@pytest.mark.parametrize(
    ("xs", "ys", "r"),
    [
        ([1, 2, 3], [2, 4, 6], 1.0),
        ([1, 2, 3], [6, 4, 2], -1.0),
        ([1, 2, 3], [1, 3, 2], 0.5),
        ([1, 2, 4, 8, 16], [1, 2, 4, 8, 1], 1.8 / math.sqrt(148.8 * 34.8)),
    ],
)
def test_pearson(xs: list[float], ys: list[float], r: float) -> None:
    assert pearson(xs, ys) == pytest.approx(r, abs=1e-6)


@pytest.mark.parametrize(("xs", "ys"), [([1], [1]), ([1, 2], [3, 3]), ([2, 2], [1, 3]), ([], [])])
def test_pearson_is_undefined_without_variation(xs: list[float], ys: list[float]) -> None:
    assert pearson(xs, ys) is None


def test_means_of_ratios() -> None:
    values = [1.0, 2.0, 4.0]
    assert mean(values) == pytest.approx(7 / 3)
    assert geometric_mean(values) == pytest.approx(2.0)
    assert harmonic_mean(values) == pytest.approx(12 / 7)
    assert mean([]) is geometric_mean([]) is harmonic_mean([]) is geometric_mean([0.0]) is None
    assert ratio(1.0, 0.0) is ratio(None, 1.0) is None
    assert ratio(3.0, 2.0) == 1.5


def test_numbers_have_significant_digits_and_no_exponent() -> None:
    assert [number(v) for v in (0.0421, 16.49, 259.0, 2630.4, 0.0)] == [
        "0.0421",
        "16.5",
        "259",
        "2,630",
        "0",
    ]
    assert number(math.inf) == number(None) == "\N{EN DASH}"


def test_times_are_in_a_unit_that_is_read_easily() -> None:
    assert [duration(v) for v in (0.0032, 27.8, 258.0, 9000.0, 0.0)] == [
        "3.20 ms",
        "27.8 s",
        "4.30 min",
        "2.50 h",
        "0 s",
    ]
