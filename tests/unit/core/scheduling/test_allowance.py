"""Division of worker time among queries, and mixing of variants."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai.core.scheduling.variants.allowance import Demand, allowances, concave_hull
from synergai.core.scheduling.variants.choice import Credit
from synergai.core.scheduling.variants.pools import planned_share

points = st.lists(
    st.tuples(st.floats(0.001, 10.0), st.floats(0.01, 1.0)), min_size=1, max_size=8, unique=True
)


def mean_value(demand: Demand, seconds: float) -> float:
    """Return the mean accuracy of a demand's queries at a mean cost."""
    if seconds <= demand.seconds[0]:
        return demand.values[0] * seconds / demand.seconds[0]
    for at in range(1, len(demand.seconds)):
        low, high = demand.seconds[at - 1], demand.seconds[at]
        if seconds <= high:
            share = (seconds - low) / (high - low)
            return demand.values[at - 1] + share * (demand.values[at] - demand.values[at - 1])
    return demand.values[-1]


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    """Draw a demand whose variants are on their hull."""
    drawn = draw(points)
    hull = [drawn[number] for number in concave_hull(drawn)]
    seconds, values = zip(*hull, strict=True)
    return Demand(draw(st.floats(0.1, 100.0)), seconds, values, math.inf)


@given(points)
def test_hull_rises_with_falling_gain(drawn: list[tuple[float, float]]) -> None:
    hull = [drawn[number] for number in concave_hull(drawn)]
    assert hull[0][0] == min(seconds for seconds, _ in drawn)
    assert hull[-1][1] == max(value for _, value in drawn)
    gains = []
    for (first_s, first), (second_s, second) in pairwise(hull):
        assert first_s < second_s
        assert first < second
        gains.append((second - first) / (second_s - first_s))
    assert gains == sorted(gains, reverse=True)


@given(st.lists(demands(), min_size=1, max_size=4), st.floats(0.01, 1000.0))
def test_allowances_spend_the_budget(drawn: list[Demand], budget_s: float) -> None:
    found = allowances(drawn, budget_s, horizon_s=math.inf)
    spent = sum(seconds * demand.queries for seconds, demand in zip(found, drawn, strict=True))
    assert spent == pytest.approx(budget_s)


@given(st.lists(demands(), min_size=2, max_size=3), st.floats(1.1, 20.0), st.data())
def test_no_other_division_of_the_same_time_is_more_accurate(
    drawn: list[Demand], times: float, data: st.DataObject
) -> None:
    budget_s = times * sum(demand.queries * demand.seconds[0] for demand in drawn)
    found = allowances(drawn, budget_s, horizon_s=math.inf)
    best = sum(d.queries * mean_value(d, s) for d, s in zip(drawn, found, strict=True))
    giver, taker = data.draw(st.permutations(range(len(drawn))))[:2]
    least_s = drawn[giver].seconds[0]
    moved_s = data.draw(st.floats(0.0, max(0.0, found[giver] - least_s))) * drawn[giver].queries
    other = list(found)
    other[giver] -= moved_s / drawn[giver].queries
    other[taker] += moved_s / drawn[taker].queries
    worse = sum(d.queries * mean_value(d, s) for d, s in zip(drawn, other, strict=True))
    assert worse <= best + 1e-9 * max(1.0, best)


@given(st.lists(demands(), min_size=1, max_size=4), st.floats(0.01, 1000.0), st.floats(0.2, 5.0))
def test_a_finite_horizon_spends_the_same_budget(
    drawn: list[Demand], budget_s: float, horizon_s: float
) -> None:
    found = allowances(drawn, budget_s, horizon_s)
    spent = sum(seconds * demand.queries for seconds, demand in zip(found, drawn, strict=True))
    assert spent == pytest.approx(budget_s)


def test_long_queries_pay_more_for_a_second() -> None:
    short = Demand(10.0, (0.01, 0.02), (0.8, 0.81), most_s=math.inf)
    long = Demand(10.0, (0.01, 0.21), (0.6, 0.84), most_s=math.inf)  # more accuracy per second
    assert allowances([short, long], 0.3, horizon_s=math.inf) == pytest.approx([0.01, 0.02])
    assert allowances([short, long], 0.3, horizon_s=1.0) == pytest.approx([0.02, 0.01])


def test_an_engine_gets_no_more_time_than_its_workers_have() -> None:
    few = Demand(10.0, (0.1, 0.5), (0.8, 0.9), most_s=2.0)
    all_workers = Demand(10.0, (0.1, 0.5), (0.1, 0.15), most_s=math.inf)
    assert allowances([few, all_workers], 6.0, horizon_s=math.inf) == pytest.approx([0.2, 0.4])


def test_more_workers_and_fewer_engines_need_less_reserve() -> None:
    assert planned_share(3, 1, spread=1.3) < 1.0
    for engines in (1, 3):
        shares = [planned_share(engines, workers, spread=1.3) for workers in (1, 2, 3, 100)]
        assert shares == sorted(set(shares))
    alone, shared, more = (planned_share(engines, 3, spread=1.3) for engines in (1, 2, 3))
    assert alone > shared == more


def test_more_reserve_is_needed_where_times_vary_more() -> None:
    shares = [planned_share(1, 3, spread) for spread in (1.0, 1.3, 1.5, 1.7, 2.0, 3.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == planned_share(3, 1, spread=1.0)


@given(points, st.floats(1.0, 50.0))
def test_the_mean_cost_is_the_allowance(drawn: list[tuple[float, float]], times: float) -> None:
    costs = sorted(seconds for seconds, _ in drawn)
    allowance = costs[0] * times
    credit = Credit()
    queries = 400
    spent = sum(costs[credit.choose(costs, allowance)] for _ in range(queries))
    expected = min(max(allowance, costs[0]), costs[-1])
    assert spent / queries == pytest.approx(expected, abs=2 * costs[-1] / queries)


def test_only_the_neighbours_of_the_allowance_are_used() -> None:
    credit = Credit()
    assert {credit.choose([1.0, 2.0, 4.0, 9.0], 3.0) for _ in range(50)} == {1, 2}


def test_a_debt_is_paid_back() -> None:
    credit = Credit()
    assert [credit.choose([8.0], 3.0)] == [0]  # a floor leaves no choice
    costs = [1.0, 2.0, 4.0]
    assert [credit.choose(costs, 3.0) for _ in range(3)] == [0, 0, 1]


def test_the_limit_of_a_query_holds() -> None:
    credit = Credit()
    assert credit.choose([1.0, 2.0, 4.0], 10.0, lambda at: min(at, 1)) == 1
    assert credit.choose([1.0, 2.0, 4.0], 10.0, lambda _: 0) == 0


@pytest.mark.parametrize(("most", "chosen"), [(1.0, 1), (0.3, 0)])
def test_credit_for_later_is_limited(most: float, chosen: int) -> None:
    credit = Credit()
    for _ in range(100):
        credit.choose((1.0, 10.0), 2.0, lambda _: 0, most)
    assert credit.choose((1.0, 10.0), 2.0, None, most) == chosen
