"""Rate of arrivals that is planned with."""

import pytest

from synergai.core.scheduling.variants.demand import ArrivalRate


def arrive(rate: ArrivalRate, per_s: float, since: float, until: float) -> None:
    """Let requests arrive at equal distances."""
    for number in range(round((until - since) * per_s)):
        rate.add(since + (number + 0.5) / per_s)


def test_the_mean_is_planned_with_while_the_last_second_differs_by_chance() -> None:
    rate = ArrivalRate()
    arrive(rate, 10.0, 100.0, 130.0)
    assert rate.observe(130.0) == pytest.approx(10.0, rel=0.02)
    arrive(rate, 14.0, 130.0, 131.0)
    assert rate.per_s(131.0) == 14.0
    assert 10.0 < rate.observe(131.0) < 11.0


@pytest.mark.parametrize("per_s", [0.0, 2.0, 20.0])
def test_the_last_second_is_planned_with_once_the_rate_has_changed(per_s: float) -> None:
    rate = ArrivalRate()
    arrive(rate, 10.0, 100.0, 130.0)
    arrive(rate, per_s, 130.0, 131.0)
    assert rate.observe(131.0) == rate.per_s(131.0) == per_s


def test_the_first_requests_are_counted_as_they_are() -> None:
    rate = ArrivalRate()
    assert rate.observe(100.0) == 0.0
    arrive(rate, 5.0, 100.0, 101.0)
    assert rate.observe(101.0) == 5.0


def test_the_mean_is_not_lower_because_it_has_just_begun() -> None:
    rate = ArrivalRate()
    arrive(rate, 10.0, 100.0, 103.0)
    assert rate.observe(103.0) == pytest.approx(10.0, rel=0.02)


@pytest.mark.parametrize("per_s", [1.0, 60.0])
def test_the_mean_begins_again_two_seconds_after_a_lasting_change(per_s: float) -> None:
    rate = ArrivalRate()
    arrive(rate, 20.0, 100.0, 130.0)
    expected = []
    for number in range(round(8 * per_s)):
        rate.add(at := 130.0 + (number + 0.5) / per_s)
        expected.append((at, rate.observe(at)))
    assert all(each == pytest.approx(per_s, rel=0.3) for at, each in expected if at >= 132.0)


def test_a_change_in_one_direction_and_back_is_chance() -> None:
    rate = ArrivalRate()
    arrive(rate, 20.0, 100.0, 130.0)
    for since, per_s in ((130.0, 45.0), (131.0, 4.0), (132.0, 20.0)):
        for number in range(round(per_s)):
            rate.add(at := since + (number + 0.5) / per_s)
            rate.observe(at)
    assert rate.observe(133.0) == pytest.approx(20.0, rel=0.15)
