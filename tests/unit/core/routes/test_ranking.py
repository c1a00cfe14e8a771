import math
from itertools import pairwise

import highspy
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from synergai.core.routes.links import GATEWAY, Link, Links
from synergai.core.routes.problem import Leg
from synergai.core.routes.ranking import MAX_CHAINS, fewest_stages, pack, rank_chains
from synergai.errors import InvalidInput

FAST = Links({}, default=Link(math.inf))
SIZES = {0: 100.0, 1: 1000.0, 2: 1000.0, 3: 10.0}


def test_the_lowest_latency_comes_first_and_for_a_range_the_shorter_interval() -> None:
    paces = {
        Leg("a", 0, 1): 1.0,
        Leg("a", 0, 2): 1.5,
        Leg("b", 1, 3): 1.0,
        Leg("b", 2, 3): 0.2,
    }
    first, second = rank_chains(paces, SIZES, FAST)
    assert (first.stages, first.latency_s) == (((0, 2), (2, 3)), 1.7)
    assert (second.stages, second.latency_s) == (((0, 1), (1, 3)), 2.0)

    first, second = rank_chains(paces, SIZES, FAST, queries=100)
    assert (first.stages, first.interval_s) == (((0, 1), (1, 3)), 1.0)
    assert first.seconds(100) == 2 + 99 * 1.0
    assert second.interval_s == 1.5


def test_of_equally_fast_chains_the_one_with_fewer_stages_comes_first() -> None:
    paces = {Leg("a", 0, 1): 1.0, Leg("a", 1, 3): 1.0, Leg("a", 0, 3): 2.0}
    assert rank_chains(paces, SIZES, FAST)[0].stages == ((0, 3),)


def test_workers_share_the_queries_of_a_stage() -> None:
    paces = {Leg("a", 0, 1): 1.0, Leg("b", 1, 3): 2.0, Leg("c", 1, 3): 2.0}
    (chain,) = rank_chains(paces, SIZES, FAST, queries=10)
    assert chain.interval_s == pytest.approx(1.0)
    assert sum(chain.rates.values()) == pytest.approx(1.0)


def test_a_worker_with_all_stages_leaves_one_to_the_worker_that_has_only_that() -> None:
    paces = {Leg("a", 0, 1): 1.0, Leg("a", 1, 3): 1.0, Leg("b", 1, 3): 1.0}
    (chain,) = rank_chains(paces, SIZES, FAST, queries=10)
    assert chain.interval_s == pytest.approx(1.0)
    assert chain.latency_s == 2.0


def test_tensors_between_workers_pass_the_links_on_their_way() -> None:
    links = Links({(GATEWAY, "b"): Link(500.0, 0.5)}, default=Link(1000.0))
    paces = {Leg("a", 0, 1): 0.1, Leg("b", 1, 3): 0.1}
    (chain,) = rank_chains(paces, SIZES, links, queries=10)
    # 0.1 s to a, 1 s from it, 0.5 + 2 s to b, and 0.01 s from it.
    assert chain.latency_s == pytest.approx(0.2 + 0.1 + 1.0 + 2.5 + 0.01)
    assert chain.interval_s == pytest.approx(2.0)


def test_a_link_that_all_routes_pass_bounds_their_sum() -> None:
    links = Links({("a", GATEWAY): Link(1000.0)}, default=Link(math.inf))
    paces = {Leg("a", 0, 1): 0.1, Leg("b", 1, 3): 0.1, Leg("c", 1, 3): 0.1}
    (chain,) = rank_chains(paces, SIZES, links, queries=10)
    assert chain.interval_s == pytest.approx(1.0)


@pytest.mark.parametrize("stages", [[], [(0, 1)], [(1, 3)], [(0, 1), (2, 3)]])
def test_without_all_stages_there_is_no_chain(stages: list[tuple[int, int]]) -> None:
    assert rank_chains({Leg("a", *stage): 1.0 for stage in stages}, SIZES, FAST) == []


@pytest.mark.parametrize("pace", [0.0, -1.0, math.inf, math.nan])
def test_a_pace_that_is_none_is_refused(pace: float) -> None:
    with pytest.raises(InvalidInput, match="stage 0-3 on a has no pace"):
        rank_chains({Leg("a", 0, 3): pace}, SIZES, FAST)


def test_a_place_of_unknown_size_is_refused() -> None:
    with pytest.raises(InvalidInput, match="stage 0-7 on a has no pace or size"):
        rank_chains({Leg("a", 0, 7): 1.0}, SIZES, FAST)


def test_of_many_chains_those_with_the_fewest_stages_are_ranked() -> None:
    stages = [(first, last) for first in range(40) for last in range(first + 1, 41)]
    chains = fewest_stages(stages, 40)
    assert [len(chain) for chain in chains] == [1, *[2] * (MAX_CHAINS - 1)]
    steps = [(first, first + step) for first in range(40) for step in (1, 2) if first + step <= 40]
    assert [len(chain) for chain in fewest_stages(steps, 40)][:3] == [20, 21, 21]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda each: each[0] < each[1]),
        unique=True,
    )
)
def test_chains_are_complete_and_in_order(stages: list[tuple[int, int]]) -> None:
    chains = fewest_stages(stages, 9)
    assert [len(chain) for chain in chains] == sorted(len(chain) for chain in chains)
    assert len(set(chains)) == len(chains)
    for chain in chains:
        assert set(chain) <= set(stages)
        assert (chain[0][0], chain[-1][1]) == (0, 9)
        assert all(before[1] == behind[0] for before, behind in pairwise(chain))


@given(st.integers(0, 2**32 - 1), st.booleans())
@example(0, True)
def test_packing_is_the_optimum_of_the_linear_programme(seed: int, alike: bool) -> None:
    generator = np.random.default_rng(seed)
    shape = generator.integers(2, 12), generator.integers(2, 40)
    costs = (
        generator.choice([0.1, 0.3, 0.7], shape) if alike else generator.uniform(0.001, 1, shape)
    )
    costs *= generator.random(shape) < 0.6
    costs[0] += 0.01
    found = pack(costs)
    assert (found >= 0).all()
    assert (costs @ found <= 1 + 1e-9).all()

    solver = highspy.Highs()  # type: ignore[no-untyped-call]  # ships partial types
    solver.silent()
    amounts = [solver.addVariable(lb=0) for _ in range(shape[1])]
    for row in costs:
        solver.addConstr(sum(float(c) * x for c, x in zip(row, amounts, strict=True)) <= 1)
    solver.maximize(sum(amounts))
    assert found.sum() == pytest.approx(solver.getObjectiveValue())
    assert pack(1e-9 * costs).sum() == pytest.approx(1e9 * found.sum())


def test_alike_workers_with_all_stages_share_a_range() -> None:
    paces = {Leg(w, *s): 1.0 for w in "abc" for s in ((0, 1), (1, 2), (2, 3))}
    (chain,) = rank_chains(paces, SIZES, FAST, queries=10)
    assert chain.interval_s == pytest.approx(1.0)
    assert {leg for route in chain.rates for leg in route.legs} <= paces.keys()


# --- early exits ----------------------------------------------------------------------------

STAGES = st.sampled_from([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
PACES = st.dictionaries(
    st.builds(lambda worker, stage: Leg(worker, *stage), st.sampled_from("abc"), STAGES),
    st.floats(0.01, 10),
    min_size=1,
)
SHARES = st.dictionaries(STAGES.filter(lambda stage: stage[1] < 3), st.floats(0, 1))
SPEEDS = st.floats(100, 1e5)
LINKS = st.builds(
    lambda peer, out: Links({("a", "b"): Link(peer, 0.3), (GATEWAY, "c"): Link(out)}, Link(2e3)),
    SPEEDS,
    SPEEDS,
)


@given(PACES, LINKS, st.sampled_from([1, 1000]))
def test_exits_at_which_all_queries_continue_change_nothing(
    paces: dict[Leg, float], links: Links, queries: int
) -> None:
    ones = {(leg.first, leg.last): 1.0 for leg in paces}
    without = rank_chains(paces, SIZES, links, queries=queries)
    assert rank_chains(paces, SIZES, links, queries=queries, continuing=ones) == without


@given(PACES, LINKS, SHARES, st.sampled_from([1, 1000]))
def test_the_chain_by_the_shares_is_no_slower_than_the_one_without(
    paces: dict[Leg, float], links: Links, shares: dict[tuple[int, int], float], queries: int
) -> None:
    without = rank_chains(paces, SIZES, links, queries=queries)
    weighed = rank_chains(paces, SIZES, links, queries=queries, continuing=shares)
    assert {each.stages for each in without} <= {each.stages for each in weighed}
    for chosen in without[:1]:
        [same] = (each for each in weighed if each.stages == chosen.stages)
        assert weighed[0].seconds(queries) <= same.seconds(queries)
        assert same.interval_s <= chosen.interval_s * (1 + 1e-9)


def test_what_is_behind_an_exit_takes_the_share_of_the_queries_that_continue() -> None:
    links = Links({}, default=Link(1000.0, 0.5))
    paces = {Leg("a", 0, 1): 1.0, Leg("b", 1, 3): 8.0}
    (chain,) = rank_chains(paces, SIZES, links, continuing={(0, 1): 0.25})
    # 0.6 s to a, 3 s from there to b, and 0.51 s from where a query leaves.
    assert chain.latency_s == pytest.approx(0.6 + 1 + 0.25 * (3 + 8) + 0.51)
    assert chain.interval_s == pytest.approx(2.0)


def test_the_whole_engine_behind_an_exit_gets_the_inputs_again() -> None:
    links = Links({}, default=Link(1000.0, 0.5))
    paces = {Leg("a", 0, 1): 1.0, Leg("b", 0, 3): 8.0}
    whole, early = rank_chains(paces, SIZES, links, continuing={(0, 1): 0.9})
    assert (whole.stages, early.stages) == (((0, 3),), ((0, 1), (0, 3)))
    assert early.latency_s == pytest.approx(0.6 + 1 + 0.9 * (0.6 + 8) + 0.51)
