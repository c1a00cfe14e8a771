import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.planning.plan import RoutePlan, pour
from synergai.core.routes.links import GATEWAY, Link, Links
from synergai.core.routes.problem import Chain, Leg, Route, RouteProblem, RouteWorker
from synergai.domain import EngineName

WHOLE = Chain(engine=EngineName("net"), sizes=(1, 1), weights_before=(0, 1), weights_after=(1, 0))
WORKERS = st.lists(st.tuples(st.floats(0.01, 100), st.floats(0, 100)), min_size=1, max_size=6)


def replicas(workers: list[tuple[float, float]], queries: int) -> tuple[RouteProblem, list[Route]]:
    """Return routes of one leg with these seconds and latencies of their links."""
    names = [f"w{number}" for number in range(len(workers))]
    problem = RouteProblem(
        chain=WHOLE,
        workers=tuple(
            RouteWorker(name, ((0.0, seconds), (0.0, 0.0)))
            for name, (seconds, _) in zip(names, workers, strict=True)
        ),
        links=Links(
            {
                (GATEWAY, name): Link(math.inf, latency_s)
                for name, (_, latency_s) in zip(names, workers, strict=True)
            },
            default=Link(math.inf),
        ),
        queries=queries,
    )
    return problem, [Route((Leg(name, 0, 1),)) for name in names]


@given(WORKERS, st.integers(1, 200))
def test_each_query_is_poured_where_it_ends_first(
    workers: list[tuple[float, float]], queries: int
) -> None:
    problem, routes = replicas(workers, queries)
    ends = [(problem.times(route).seconds(1), number) for number, route in enumerate(routes)]
    heapq.heapify(ends)
    for _ in range(queries):
        end_s, number = ends[0]
        heapq.heapreplace(ends, (end_s + workers[number][0], number))
    plan = RoutePlan(pour(problem, routes))
    assert sum(share.queries for share in plan.shares) == queries
    assert plan.seconds == pytest.approx(end_s)


def test_query_that_two_workers_would_end_at_the_same_time_is_poured_once() -> None:
    [share] = pour(*replicas([(1.0, 0.5), (1.0, 0.5)], 1))
    assert share.queries == 1
