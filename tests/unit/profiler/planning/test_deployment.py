"""Deployments of several engines that share workers and links."""

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from profiler.planning.deployment import LEAST_GAIN, Need, Wanted, wanted
from profiler.planning.enumeration import routes
from profiler.planning.plan import RoutePlan
from synergai.core.routes.deployment import routes_of, stages_of
from synergai.core.routes.links import GATEWAY, Link, Links
from synergai.core.routes.problem import HOST_BYTES, Chain, Leg, Route, RouteProblem, RouteWorker
from synergai.domain import EngineName

MB = 1e6
SHARES = (0.0, 0.3, 0.5, 0.8, 1.0)


def chain(name: str = "net", weights: float = 100 * MB) -> Chain:
    before = [int(share * weights) for share in SHARES]
    return Chain(
        engine=EngineName(name),
        sizes=(1000, 1000, 1000, 1000, 1000),
        weights_before=tuple(before),
        weights_after=tuple(before[-1] - each for each in before),
    )


def worker(name: str, memory_mb: float = math.inf, speed: float = 1.0) -> RouteWorker:
    seconds = tuple(tuple(max(0.0, b - a) / speed for b in SHARES) for a in SHARES)
    return RouteWorker(name, seconds, memory_mb * MB)


def need(*workers: RouteWorker, weights: float = 100 * MB, name: str = "net") -> Need:
    links = Links({}, Link(1e9))
    problem = RouteProblem(chain=chain(name, weights), workers=workers, links=links, queries=1000)
    return Need(problem=problem)


def plan_of(asked: Need) -> RoutePlan | None:
    return wanted([asked], "optimal")[asked.problem.chain.engine].plan


def legs(plan: RoutePlan | None) -> list[list[tuple[str, int, int]]]:
    shares = () if plan is None else plan.shares
    return [[(leg.worker, leg.first, leg.last) for leg in each.route.legs] for each in shares]


SMALL = (worker("a", 240), worker("b", 240))
UNEVEN = tuple(
    tuple(max(0.0, b - a) for b in (0.0, 0.6, 1.0, 2.2, 3.0)) for a in (0.0, 0.6, 1.0, 2.2, 3.0)
)
"""The last two segments take twice as long as the first two."""


def test_engine_that_no_worker_can_hold_is_cut() -> None:
    found = wanted([need(*SMALL)], "optimal")[EngineName("net")]
    assert legs(found.plan) == [[("a", 0, 2), ("b", 2, 4)]]
    assert found.reason == "no worker has the memory for the whole engine"


def test_engine_that_a_worker_can_hold_runs_whole_unless_cutting_pays_and_is_allowed() -> None:
    roomy = need(worker("a"), *SMALL[1:], worker("c", 240))
    assert not plan_of(roomy).is_split  # type: ignore[union-attr]
    gains = plan_of(replace(roomy, cutting="auto"))
    assert gains is not None
    assert gains.is_split


def test_engine_runs_in_no_stages_beside_a_worker_that_has_it_whole() -> None:
    # Half as fast as the others, the roomy worker would add a third to their rate.
    asked = need(worker("a", speed=0.5), worker("b", 240), worker("c", 240))
    plan = plan_of(replace(asked, cutting="auto"))
    assert {len(each) > 1 for each in legs(plan)} == {True}


def test_split_that_saves_less_than_a_change_costs_is_not_wanted() -> None:
    # Alone, the first worker takes 1 s. In stages, one of both takes 0.88 s or more.
    asked = replace(need(worker("a"), worker("b", 240, 1 / 4.4)), cutting="auto")
    whole = plan_of(asked)
    assert whole is not None
    assert not whole.is_split


def test_engine_that_may_not_be_cut_is_not_planned() -> None:
    found = wanted([replace(need(*SMALL), cutting="never")], "optimal")[EngineName("net")]
    assert found == (None, "it may not be cut")


def test_present_deployment_stays_until_another_saves_what_a_change_costs() -> None:
    asked = need(*SMALL)
    best = plan_of(asked)
    assert best is not None
    for speed, moves in ((1.05, False), (1 / (1 - 2 * LEAST_GAIN), True)):
        other = worker("c", 240, 1.0)
        faster = need(*(worker(each.name, 240, 1 / speed) for each in SMALL), other)
        routes = tuple(share.route for share in best.shares)
        found = plan_of(replace(faster, present=routes))
        assert (legs(found) != legs(best)) is moves


def test_present_deployment_that_has_become_impossible_is_replaced() -> None:
    best = plan_of(need(*SMALL))
    assert best is not None
    routes = tuple(share.route for share in best.shares)
    left = replace(need(SMALL[0], worker("c", 240)), present=routes)
    assert {leg[0] for route in legs(plan_of(left)) for leg in route} == {"a", "c"}


def test_worker_keeps_its_stage_when_the_other_one_is_replaced() -> None:
    for first, second in (("a", "b"), ("b", "a")):
        routes = (Route((Leg(first, 0, 2), Leg(second, 2, 4))),)
        for left in ("a", "b"):
            asked = replace(need(worker(left, 240), worker("c", 240)), present=routes)
            [[*stages]] = legs(plan_of(asked))
            assert [each for each in stages if each in routes[0].legs] == [
                leg for leg in routes[0].legs if leg.worker == left
            ]


def test_engine_returns_to_one_worker_when_that_can_hold_it() -> None:
    best = plan_of(need(*SMALL))
    assert best is not None
    routes = tuple(share.route for share in best.shares)
    found = plan_of(replace(need(*SMALL, worker("c")), present=routes))
    assert legs(found) == [[("c", 0, 4)]]


def test_engines_that_do_not_fit_together_are_told_apart() -> None:
    found = wanted([need(*SMALL, name=name) for name in ("one", "two")], "optimal")
    plans = [found[EngineName(name)] for name in ("one", "two")]
    assert [plan.plan is None for plan in plans].count(True) == 1


@pytest.mark.parametrize("slower", ["one", "two"])
def test_deployed_engines_stay_and_else_those_asked_most_are_planned_if_not_all_fit(
    slower: str,
) -> None:
    speeds = {name: 0.5 if name == slower else 1.0 for name in ("one", "two")}
    needs = [
        replace(need(*(worker(w, 240, speed) for w in "ab"), name=name), queries_per_s=rate)
        for (name, speed), rate in zip(speeds.items(), (10.0, 1.0), strict=True)
    ]
    found = wanted(needs, "optimal")
    assert [plan is not None for plan, _ in found.values()] == [True, False]
    plan = plan_of(needs[1])
    assert plan is not None
    needs[1] = replace(needs[1], present=tuple(share.route for share in plan.shares))
    found = wanted(needs, "optimal")
    assert [plan is not None for plan, _ in found.values()] == [False, True]


@pytest.mark.parametrize("workers", [4, 5])
def test_engine_leaves_workers_to_others_that_have_none(workers: int) -> None:
    small = [worker(name, 240) for name in "abcde"[:workers]]
    needs = [need(*small, name=name) for name in ("one", "two")]
    alone = plan_of(needs[0])
    assert len(legs(alone)) == 2
    deployed = tuple(share.route for share in alone.shares) if alone is not None else ()
    for before in ((), deployed):
        first = replace(needs[0], present=before)
        found = wanted([first, needs[1]], "optimal")
        used = [leg[0] for each in found.values() for route in legs(each.plan) for leg in route]
        assert all(legs(each.plan) for each in found.values())
        assert len(used) == len(set(used))
    kept = wanted(present(needs, found), "optimal")
    assert [legs(kept[name].plan) for name in found] == [legs(found[name].plan) for name in found]


def present(needs: list[Need], found: dict[EngineName, Wanted]) -> list[Need]:
    """Return engines as they are once they are deployed as wanted."""
    plans = [found[each.problem.chain.engine].plan for each in needs]
    return [
        replace(each, present=tuple(share.route for share in plan.shares))
        for each, plan in zip(needs, plans, strict=True)
        if plan is not None
    ]


def test_faster_workers_go_to_the_engine_that_is_asked_more_if_that_is_worth_a_change() -> None:
    speeds = {"a": 1.0, "b": 1.0, "c": 0.5, "d": 0.5}
    workers = [worker(name, 240, speed) for name, speed in speeds.items()]
    needs, on_fast = [need(*workers, name=name) for name in ("one", "two")], []
    for rates in (
        (0.0, 0.0),
        (1.0, 0.5),
        (0.9, 1.0),
        (0.1, 1.0),
        (0.0, 0.0),
        (0.9, 1.0),
        (1.0, 0.1),
    ):
        asked = [replace(each, queries_per_s=at) for each, at in zip(needs, rates, strict=True)]
        found = wanted(asked, "optimal")
        on_fast += [name for name, (plan, _) in found.items() if "a" in str(legs(plan))]
        needs = present(needs, found)
    assert on_fast == ["one", "one", "one", "two", "two", "two", "one"]


def test_engine_that_fits_whole_takes_turns_with_stages() -> None:
    small = need(*SMALL, weights=30 * MB, name="small")
    found = wanted([need(*SMALL), small], "optimal")
    assert legs(found[EngineName("net")].plan)
    assert all(len(route) == 1 for route in legs(found[EngineName("small")].plan))


@st.composite
def fleets(draw: st.DrawFn) -> list[Need]:
    workers = [
        worker(f"w{number}", draw(st.integers(60, 500)), draw(st.floats(0.5, 4.0)))
        for number in range(draw(st.integers(1, 4)))
    ]
    cutting = st.sampled_from(["never", "needed", "auto"])
    return [
        replace(
            need(*workers, weights=draw(st.integers(10, 200)) * MB, name=name),
            cutting=draw(cutting),
            queries_per_s=draw(st.floats(0.0, 2.0)),
        )
        for name in ("one", "two")[: draw(st.integers(1, 2))]
    ]


@given(fleets())
def test_drawn_deployments_keep_every_budget_and_cover_every_engine(needs: list[Need]) -> None:
    found = wanted(needs, "optimal")
    used: dict[str, float] = {}
    for each in needs:
        problem = each.problem
        chosen = found[problem.chain.engine].plan
        alone = any(problem.fits(one, 0, problem.chain.end) for one in problem.workers)
        assert chosen is not None or not alone
        if chosen is None:
            continue
        assert not chosen.is_split or each.cutting == "auto" or not alone
        assert sum(share.queries for share in chosen.shares) == problem.queries
        for share in chosen.shares:
            problem.times(share.route)  # which checks order, workers and each budget alone
        if chosen.is_split:
            for leg in {leg for share in chosen.shares for leg in share.route.legs}:
                used[leg.worker] = used.get(leg.worker, 0.0) + problem.memory_bytes(*leg[1:])
    budgets = {one.name: one.budget_bytes for one in needs[0].problem.workers}
    assert all(used[name] <= budgets[name] for name in used)
    again = [
        replace(each, present=tuple(share.route for share in plan.shares))
        for each in needs
        if (plan := found[each.problem.chain.engine].plan) is not None and plan.is_split
    ]
    if len(again) == len(needs) == 1:
        assert legs(wanted(again, "optimal")[again[0].problem.chain.engine].plan) == legs(
            found[again[0].problem.chain.engine].plan
        )


def test_stages_of_routes_make_up_the_routes_again() -> None:
    best = plan_of(need(*SMALL, worker("c", 240), worker("d", 240)))
    assert best is not None
    stages = stages_of(share.route for share in best.shares)
    assert stages_of(routes_of(stages)) == stages
    del stages[min(stages)]
    assert routes_of(stages) == ()


def test_host_takes_memory_besides_its_weights() -> None:
    assert need(*SMALL).problem.memory_bytes(0, 1) > HOST_BYTES


def partitions(workers: list[RouteWorker]) -> Iterator[list[list[RouteWorker]]]:
    """All ways to divide workers into groups, of which some may be left out."""
    if not workers:
        yield []
        return
    first, *others = workers
    for groups in partitions(others):
        yield groups
        yield [[first], *groups]
        for number, group in enumerate(groups):
            yield [*groups[:number], [first, *group], *groups[number + 1 :]]


def best_interval_s(problem: RouteProblem, legs: int | None) -> float:
    """The least time between two queries, over all routes side by side."""
    rates: dict[frozenset[str], float] = {}

    def rate(group: list[RouteWorker]) -> float:
        names = frozenset(each.name for each in group)
        if names not in rates:
            found = routes(replace(problem, workers=tuple(group)), legs)
            times = (problem.times(route).interval_s for route in found)
            rates[names] = 1 / min(times, default=math.inf)
        return rates[names]

    best = max(sum(map(rate, groups)) for groups in partitions(list(problem.workers)))
    return 1 / best if best else math.inf


@pytest.mark.parametrize("seed", range(24))
def test_drawn_deployment_is_within_5_percent_of_the_best_of_all(seed: int) -> None:
    draw = random.Random(seed)
    workers = [
        worker(f"w{number}", draw.uniform(80, 420), draw.uniform(0.5, 4.0)) for number in range(4)
    ]
    asked = need(*workers)
    pairs = {
        (one, other): Link(draw.uniform(2e3, 2e5), 0.001)
        for one in (*(each.name for each in workers), GATEWAY)
        for other in (each.name for each in workers)
        if one != other
    }
    asked = replace(asked, problem=replace(asked.problem, links=Links(pairs, Link(1e5))))
    problem = replace(asked.problem, queries=10_000)
    whole = any(problem.fits(each, 0, problem.chain.end) for each in workers)
    best_s = best_interval_s(problem, 1 if whole else None)
    plan = plan_of(replace(asked, problem=problem))
    assert (plan is None) == (best_s == math.inf)
    if plan is not None:
        assert plan.is_split is not whole
        assert plan.interval_s <= 1.05 * best_s


# --- stages that workers share --------------------------------------------------------------


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 3))
def test_every_worker_of_a_stage_is_in_a_route(widths: list[int], stages: int) -> None:
    names = iter("abcdefghijklmnopqrstuvwxyz")
    found = {
        (number, number + 1): frozenset(next(names) for _ in range(1 + width))
        for number, width in enumerate(widths[:stages])
    }
    routes = routes_of(found)
    assert stages_of(routes) == found
    apart = min(map(len, found.values()))
    assert len({leg for route in routes[:apart] for leg in route.legs}) == apart * len(found)


THREE = (*SMALL, worker("c", 240))


def test_slowest_stage_of_an_engine_gets_further_workers_and_keeps_them() -> None:
    slow_behind = [replace(each, seconds=UNEVEN) for each in THREE]
    asked = need(*slow_behind)
    plan = plan_of(asked)
    assert plan is not None
    stages = stages_of(share.route for share in plan.shares)
    assert {stage: len(workers) for stage, workers in stages.items()} == {(0, 2): 1, (2, 4): 2}
    assert plan.interval_s == pytest.approx(1.0)
    again = replace(asked, present=routes_of(stages))
    found = wanted([again], "optimal")[EngineName("net")]
    assert found.plan is not None
    assert stages_of(share.route for share in found.plan.shares) == stages


def test_workers_that_share_stages_keep_them_when_another_one_is_replaced() -> None:
    stages = {(0, 2): frozenset("a"), (2, 4): frozenset("bc")}
    for left in "abc":
        rest = [each for each in (*THREE, worker("d", 240)) if each.name != left]
        asked = need(*(replace(each, seconds=UNEVEN) for each in rest))
        plan = plan_of(replace(asked, present=routes_of(stages)))
        assert plan is not None
        kept = stages_of(share.route for share in plan.shares)
        assert all(stages[stage] - {left} <= kept[stage] for stage in stages)
