import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks import networks
from benchmarks.drawn_routes import drawn_problem
from benchmarks.route_searches import fast_and_slow
from profiler.planning.moves import is_possible, joined, moved, weights
from profiler.planning.optimal import optimal_route
from profiler.planning.pipe_search import pipe_search
from profiler.planning.tuning import lightest_fast
from synergai.core.routes.links import Hop, Link, Links
from synergai.core.routes.planner import ROUTE_PLANNERS, Search, run_search
from synergai.core.routes.problem import Route, RouteProblem, RouteTimes
from synergai.errors import InvalidInput
from tests.chain_problems import problems

SEARCHES = [
    ("lls", {}),
    ("odin", {}),
    ("odin", {"alpha": 2}),
    ("pipe_search", {}),
    ("shisha", {}),
    ("shisha", {"alpha": 10}),
]
PROBLEMS = problems(9, 4, 1, 100)
EVEN = replace(drawn_problem(0, cuts=11, workers=3), links=Links({}, Link(1e12)))
"""A chain of twelve segments over three workers."""


def search(problem: RouteProblem, name: str, **options: Any) -> Search:
    return ROUTE_PLANNERS.get(name)(problem, **options)


def ends(route: Route) -> list[int]:
    return [leg.last for leg in route.legs]


def scripted(found: Search, stages: Sequence[Sequence[float]]) -> tuple[Route | None, list[Route]]:
    """Answer trials with stage times, the last ones for ever; return the result and the trials."""
    tried: list[Route] = []

    def trial(route: Route) -> RouteTimes:
        tried.append(route)
        times = stages[min(len(tried), len(stages)) - 1]
        return RouteTimes(tuple(times), (Hop(0.0, 0.0),) * (len(times) + 1))

    return run_search(found, trial)[0], tried


# --- moves ----------------------------------------------------------------------------------------


@given(st.data())
def test_moved_segment_leaves_the_other_legs_as_long_as_they_were(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    cuts = [sum(lengths[: leg + 1]) for leg in range(len(lengths))]
    route = joined(cuts[-1], cuts[:-1], [f"w{leg}" for leg in range(len(lengths))])
    giver, taker = (data.draw(st.integers(0, len(lengths) - 1)) for _ in range(2))
    found = moved(route, giver, taker)
    if lengths[giver] == 1:
        assert found is None
    else:
        lengths[giver] -= 1
        lengths[taker] += 1
        assert found is not None
        assert [leg.last - leg.first for leg in found.legs] == lengths


def test_segments_without_known_times_are_of_equal_work() -> None:
    unknown = tuple(
        replace(worker, seconds=tuple((math.inf,) * len(row) for row in worker.seconds))
        for worker in EVEN.workers
    )
    assert len(set(weights(replace(EVEN, workers=unknown)))) == 1
    known = weights(replace(EVEN, workers=(*unknown[:2], EVEN.workers[2])))
    head = EVEN.workers[2].seconds[0]
    assert known == pytest.approx([(b - a) / head[-1] for a, b in itertools.pairwise(head)])


# --- all searches ---------------------------------------------------------------------------------


@settings(max_examples=30)
@given(PROBLEMS, st.sampled_from(SEARCHES))
def test_search_returns_the_best_of_the_possible_routes_that_it_tried(
    problem: RouteProblem, chosen: tuple[str, dict[str, Any]]
) -> None:
    tried: list[Route] = []

    def trial(route: Route) -> RouteTimes:
        tried.append(route)
        return problem.times(route)  # raises on what is no route

    name, options = chosen
    route, trials = run_search(search(problem, name, **options), trial)
    assert trials == len(tried) == len(set(tried)) or name == "shisha"
    seconds = [problem.times(each).seconds(problem.queries) for each in tried]
    if route is None:
        assert not tried
    else:
        assert problem.times(route).seconds(problem.queries) == min(seconds)


@pytest.mark.parametrize(("name", "options"), SEARCHES)
def test_route_of_unknown_time_is_not_tried(name: str, options: dict[str, Any]) -> None:
    whole_only = replace(
        EVEN.workers[0],
        seconds=tuple(
            tuple(each if (first, last) == (0, 12) else math.inf for last, each in enumerate(row))
            for first, row in enumerate(EVEN.workers[0].seconds)
        ),
    )
    problem = replace(EVEN, workers=(whole_only, *EVEN.workers[1:]))
    route, tried = scripted(search(problem, name, **options), [(1.0,)] * 3)
    assert all(is_possible(problem, each) for each in tried)
    assert route is None or route in tried


@pytest.mark.parametrize("name", ["odin", "lls"])
def test_search_begins_at_the_running_route_unless_its_worker_left(name: str) -> None:
    running = joined(12, [1, 2], ["w2", "w0", "w1"])
    _, [first, *_] = scripted(search(replace(EVEN, current=running), name), [(1.0, 1.0, 1.0)])
    assert first == running
    gone = replace(running, legs=(running.legs[0]._replace(worker="gone"), *running.legs[1:]))
    _, [first, *_] = scripted(search(replace(EVEN, current=gone), name), [(1.0, 1.0, 1.0)])
    assert is_possible(EVEN, first)


@pytest.mark.parametrize("name", ["odin", "lls"])
def test_search_from_a_running_route_needs_no_worker_that_runs_all(name: str) -> None:
    workers = tuple(
        replace(
            worker,
            seconds=((*worker.seconds[0][:-1], math.inf), *worker.seconds[1:]),
        )
        for worker in EVEN.workers
    )
    running = joined(12, [4, 8], ["w0", "w1", "w2"])
    problem = replace(EVEN, workers=workers, current=running)
    _, [first, *_] = scripted(search(problem, name), [(1.0, 1.0, 1.0)])
    assert first == running


# --- rules of each --------------------------------------------------------------------------------


def test_lls_moves_from_the_slowest_to_the_fastest_stage_until_the_first_loss() -> None:
    problem = replace(EVEN, queries=1000, current=joined(12, [4, 8], ["w0", "w1", "w2"]))
    times = [(5, 2, 1), (4, 2, 2), (3, 3.5, 2), (9, 9, 9)]
    route, tried = scripted(search(problem, "lls"), times)
    assert [ends(each) for each in tried] == [[4, 8, 12], [3, 7, 12], [2, 7, 12], [2, 6, 12]]
    assert route == tried[2]


def test_odin_moves_to_the_fastest_stage_of_the_lighter_side() -> None:
    problem = replace(EVEN, queries=1000, current=joined(12, [4, 8], ["w0", "w1", "w2"]))
    _, tried = scripted(search(problem, "odin", alpha=1), [(2, 5, 1), (9, 9, 9)])
    assert [ends(each) for each in tried] == [[4, 8, 12], [4, 7, 12]]
    _, tried = scripted(search(problem, "odin", alpha=1), [(1, 5, 2), (9, 9, 9)])
    assert [ends(each) for each in tried] == [[4, 8, 12], [5, 8, 12]]


def test_odin_goes_on_from_a_worse_route_and_repeats_a_step_without_effect() -> None:
    problem = replace(EVEN, queries=1000, current=joined(12, [4, 8], ["w0", "w1", "w2"]))
    times = [(5.0, 1.0, 2.0), (1.0, 2.0, 5.0), (3.0, 2.0, 1.0), (9.0, 9.0, 9.0)]
    route, tried = scripted(search(problem, "odin", alpha=2), times)
    # The second route is no gain: its slowest stage is another, but the first one gives again.
    assert [ends(each) for each in tried[:3]] == [[4, 8, 12], [3, 8, 12], [2, 8, 12]]
    assert route == tried[2]


def test_shisha_begins_with_work_in_proportion_to_the_speeds_of_the_workers() -> None:
    first = next(search(EVEN, "shisha"))
    work = weights(EVEN)
    fastest = sorted(EVEN.workers, key=lambda worker: worker.seconds[0][-1])
    assert [leg.worker for leg in first.legs] == [each.name for each in fastest]
    speeds = [1 / each.seconds[0][-1] for each in fastest]
    for leg, speed in zip(first.legs, speeds, strict=True):
        share = sum(work[leg.first : leg.last]) / sum(work)
        # A cut is at most half of a segment away from where it should be.
        assert share == pytest.approx(speed / sum(speeds), abs=max(work) / sum(work))


@pytest.mark.parametrize("problem", fast_and_slow(), ids=str(range(12)))
def test_shisha_comes_close_to_the_optimum_in_20_trials(problem: RouteProblem) -> None:
    optimum = optimal_route(problem)
    assert optimum is not None
    route, trials = run_search(search(problem, "shisha"), problem.times)
    assert route is not None
    assert trials <= 20
    assert problem.times(optimum).interval_s >= 0.9 * problem.times(route).interval_s


def test_pipe_search_refuses_a_table_that_is_too_large() -> None:
    problem = drawn_problem(0, cuts=50, workers=8)
    with pytest.raises(InvalidInput, match="too many to"):
        run_search(search(problem, "pipe_search"), problem.times)


def test_shisha_unloads_the_slowest_stage_to_the_lightest_fast_worker() -> None:
    fast, slow = [networks.FAST] * 2, [networks.SLOW] * 2
    taker = lightest_fast(networks.problem("ResNet50", [*fast, *slow]))
    route = joined(18, [4, 8, 12], ["w2", "w0", "w3", "w1"])
    assert list(taker(route, (1.0, 3.0, 9.0, 2.0), 2)) == [3, 1, 0]


def test_hints_of_pipe_search_need_no_times_of_stages() -> None:
    drawn = networks.problem("ResNet50", [networks.FAST] * 3)
    lying = [1.0] * 17 + [1e6]
    [first] = itertools.islice(pipe_search(drawn, lying), 1)
    assert first.legs[-1].last - first.legs[-1].first == 1


def test_seeds_descriptors_give_the_operations_of_the_networks() -> None:
    billions = {
        name: sum(layer.operations for segment in network for layer in segment) / 1e9
        for name, network in networks.NETWORKS.items()
    }
    # He et al. (2016) and Simonyan and Zisserman (2015), in multiply-accumulates.
    assert billions == pytest.approx({"VGG16": 15.5, "ResNet50": 4.1, "ResNet152": 11.5}, rel=0.01)
