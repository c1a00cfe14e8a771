"""Arrival processes: rates over time, and send times."""

import math
import statistics
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.loadgen.traces.arrivals import (
    Curve,
    Exponential,
    Linear,
    Recorded,
    arrivals,
    constant,
    read_rates,
)
from synergai.errors import InvalidInput

RATES = st.floats(0.1, 500.0)
DURATIONS = st.floats(0.1, 5.0)
CURVES: st.SearchStrategy[Curve] = st.one_of(
    st.builds(constant, RATES, DURATIONS),
    st.builds(Linear, RATES, RATES, DURATIONS),
    st.builds(Exponential, RATES, RATES, DURATIONS),
    st.lists(st.one_of(st.just(0.0), st.floats(0.01, 500.0)), min_size=1, max_size=8).map(Recorded),
)
SEEDS = st.one_of(st.none(), st.integers(0, 1000))


@given(CURVES, SEEDS)
def test_arrivals_are_in_order_and_within_the_duration(curve: Curve, seed: int | None) -> None:
    instants = list(arrivals(curve, seed))
    assert instants == sorted(instants)
    assert all(0 <= instant <= curve.duration for instant in instants)


@given(CURVES)
def test_number_of_even_arrivals_is_the_integral_of_the_rate(curve: Curve) -> None:
    assert len(list(arrivals(curve))) == math.ceil(curve.total)


@given(CURVES, st.integers(0, 1000))
def test_same_seed_gives_same_arrivals(curve: Curve, seed: int) -> None:
    assert list(arrivals(curve, seed)) == list(arrivals(curve, seed))


def test_other_seed_gives_other_arrivals() -> None:
    curve = constant(100.0, 1.0)
    assert list(arrivals(curve, 1)) != list(arrivals(curve, 2))


def test_constant_rate_has_even_gaps() -> None:
    instants = list(arrivals(constant(50.0, 2.0)))
    assert all(gap == pytest.approx(0.02) for gap in (b - a for a, b in pairwise(instants)))


def test_random_gaps_are_a_poisson_process_of_the_rate() -> None:
    instants = list(arrivals(constant(1000.0, 20.0), seed=7))
    gaps = [b - a for a, b in pairwise(instants)]
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(1e-3, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(mean, rel=0.05), "as of exponential gaps"


@pytest.mark.parametrize(
    ("curve", "rates"),
    [
        (Linear(100.0, 300.0, 4.0), (125.0, 175.0, 225.0, 275.0)),
        (Linear(300.0, 100.0, 4.0), (275.0, 225.0, 175.0, 125.0)),
        (Exponential(100.0, 1600.0, 4.0), (144.3, 288.5, 577.1, 1154.2)),
        (Exponential(1600.0, 100.0, 4.0), (1154.2, 577.1, 288.5, 144.3)),
        (Exponential(200.0, 200.0, 2.0), (200.0, 200.0)),
        (Recorded([30.0, 0.0, 90.0]), (30.0, 0.0, 90.0)),
    ],
    ids=str,
)
def test_arrivals_per_second_follow_the_rate(curve: Curve, rates: tuple[float, ...]) -> None:
    instants = list(arrivals(curve))
    for second, rate in enumerate(rates):
        # Rounding may move an arrival at the very end of a second into the next one.
        sent = bisect_right(instants, second + 1 - 1e-9) - bisect_right(instants, second - 1e-9)
        assert sent == pytest.approx(rate, abs=1.0)


def test_recording_without_requests_sends_none() -> None:
    assert not list(arrivals(Recorded([0.0, 0.0])))
    assert not list(arrivals(Recorded([0.0]), seed=1))


@pytest.mark.parametrize(
    ("first", "last", "duration"), [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 0.0)]
)
@pytest.mark.parametrize("kind", [Linear, Exponential])
def test_rates_and_duration_are_positive(
    kind: type[Linear | Exponential], first: float, last: float, duration: float
) -> None:
    with pytest.raises(InvalidInput, match="must be positive"):
        kind(first, last, duration)


@pytest.mark.parametrize("rates", [[], [1.0, -1.0], [math.nan], [math.inf], [1e308] * 2])
def test_recording_has_a_rate_for_each_second(rates: list[float]) -> None:
    with pytest.raises(InvalidInput, match="for each second"):
        Recorded(rates)


def test_trace_with_too_many_requests_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="limit of 10,000,000"):
        arrivals(constant(1e6, 11.0))


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("3\n4.5\n0\n", [3.0, 4.5, 0.0]),
        ("second,rate\n0,10\n1,20\n", [10.0, 20.0]),
        ("7\n\n8\n", [7.0, 8.0]),
    ],
)
def test_rates_are_read_from_the_last_column(text: str, rates: list[float], tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text(text)
    assert read_rates(path) == rates


def test_line_without_a_rate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    for text, wrong in (("1\nmany\n", "'many' in line 2"), ("0,1O\n1,20\n", "'1O' in line 1")):
        path.write_text(text)
        with pytest.raises(InvalidInput, match=f"{wrong} is not a rate"):
            read_rates(path)
    with pytest.raises(InvalidInput, match="cannot read"):
        read_rates(tmp_path / "nowhere.csv")
