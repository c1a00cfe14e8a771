import math

import pytest
from msgspec.structs import replace

from synergai.core.routes.links import GATEWAY, Hop, Link, Links
from synergai.core.routes.problem import (
    HOST_BYTES,
    SESSION_PER_WEIGHT,
    Chain,
    Leg,
    Route,
    RouteProblem,
    RouteTimes,
    RouteWorker,
)
from synergai.domain import EngineName
from synergai.errors import InvalidInput

CHAIN = Chain(
    engine=EngineName("net"),
    sizes=(100, 1000, 200, 10),
    weights_before=(0, 10, 40, 100),
    weights_after=(100, 95, 60, 0),
)
"""Two cuts; 5 bytes of weights are needed on both sides of the first."""


SHARES = (1.0, 0.5, 0.25, 1.0)


def worker(name: str, speed: float, budget_bytes: float = math.inf) -> RouteWorker:
    ends = (0.0, 0.1, 0.4, 1.0)
    return RouteWorker(
        name, tuple(tuple(max(0.0, b - a) / speed for b in ends) for a in ends), budget_bytes
    )


def problem(*workers: RouteWorker, links: Links | None = None) -> RouteProblem:
    return RouteProblem(
        chain=CHAIN, workers=workers, links=links or Links({}, default=Link(1000, 0.01))
    )


def test_weights_of_stages_count_what_both_sides_need_in_both() -> None:
    assert [CHAIN.weights(0, 3), CHAIN.weights(0, 1), CHAIN.weights(1, 3)] == [100, 10, 95]
    assert CHAIN.weights(1, 2) == 35


def test_tensor_takes_no_time_within_a_host() -> None:
    assert Links({}, default=Link(1)).hop("a", "a", 1e9) == Hop(0.0, 0.0)


def test_pair_without_a_link_goes_through_the_gateway() -> None:
    links = Links({("a", GATEWAY): Link(100, 0.5)}, default=Link(1000, 0.25))
    assert links.hop("a", "b", 100) == Hop(0.5 + 1 + 0.25 + 0.1, 1.0)
    assert links.hop("b", "a", 100) == Hop(0.7, 0.1)


def test_known_link_beats_the_way_through_the_gateway() -> None:
    links = Links({("a", "b"): Link(10, 0.5)}, default=Link(1000))
    assert links.hop("a", "b", 100) == Hop(10.5, 10.0)


@pytest.mark.parametrize(
    "link", [Link(0), Link(-1), Link(math.nan), Link(1, -1), Link(1, math.inf)]
)
def test_impossible_link_is_refused(link: Link) -> None:
    with pytest.raises(InvalidInput, match="the link from a to b has a"):
        Links({("a", "b"): link}, default=Link(1))


def test_route_takes_its_stages_and_all_hops() -> None:
    times = problem(worker("a", 1), worker("b", 2)).times(Route((Leg("a", 0, 2), Leg("b", 2, 3))))
    assert times.stages == pytest.approx((0.4, 0.3))
    assert [hop.seconds for hop in times.hops] == pytest.approx([0.11, 0.42, 0.02])
    assert times.latency_s == pytest.approx(1.25)
    assert times.interval_s == pytest.approx(0.4)
    assert times.seconds(11) == pytest.approx(1.25 + 10 * 0.4)


def test_slowest_hop_can_be_the_interval() -> None:
    assert RouteTimes((0.1, 0.2), (Hop(0.9, 0.3),)).interval_s == 0.3


@pytest.mark.parametrize(
    "legs",
    [
        (),
        (Leg("a", 0, 2),),
        (Leg("a", 1, 3),),
        (Leg("a", 0, 2), Leg("b", 1, 3)),
        (Leg("a", 0, 0), Leg("b", 0, 3)),
        (Leg("a", 0, 2), Leg("a", 2, 3)),
        (Leg("c", 0, 3),),
    ],
)
def test_legs_that_are_no_route_are_refused(legs: tuple[Leg, ...]) -> None:
    with pytest.raises(InvalidInput):
        problem(worker("a", 1), worker("b", 1)).times(Route(legs))


def test_stage_above_the_memory_of_a_worker_is_refused() -> None:
    small = worker("a", 1, budget_bytes=HOST_BYTES + SESSION_PER_WEIGHT * 99)
    with pytest.raises(InvalidInput, match="stage 0-3 does not fit on a"):
        problem(small).times(Route((Leg("a", 0, 3),)))
    assert problem(small).fits(small, 0, 2)


def test_what_is_behind_an_exit_takes_the_share_of_the_queries_that_continue() -> None:
    exits = replace(problem(worker("a", 1), worker("b", 2)), chain=replace(CHAIN, shares=SHARES))
    times = exits.times(Route((Leg("a", 0, 2), Leg("b", 2, 3))))
    assert times.stages == pytest.approx((0.4, 0.25 * 0.3))
    # Results return from where queries leave.
    assert [hop.seconds for hop in times.hops] == pytest.approx([0.11, 0.25 * 0.42, 0.02])
    assert exits.times(Route((Leg("a", 0, 3),))).stages == (1.0,)


def test_query_that_leaves_where_it_arose_passes_no_link() -> None:
    exits = replace(
        problem(worker("a", 1), worker("b", 2)), chain=replace(CHAIN, shares=SHARES), source="a"
    )
    times = exits.times(Route((Leg("a", 0, 2), Leg("b", 2, 3))))
    assert [hop.seconds for hop in times.hops] == pytest.approx([0, 0.25 * 0.42, 0.25 * 0.04])
