"""Problems of routes: drawn ones, and a chain with one cut over workers that are alike."""

import math

from hypothesis import strategies as st

from benchmarks.drawn_routes import drawn_problem
from synergai.core.routes.links import Link, Links
from synergai.core.routes.problem import (
    HOST_BYTES,
    SESSION_PER_WEIGHT,
    Chain,
    RouteProblem,
    RouteWorker,
)
from synergai.domain import EngineName

WHOLE = HOST_BYTES + SESSION_PER_WEIGHT * 100
HALF = HOST_BYTES + SESSION_PER_WEIGHT * 50
"""Memory for the whole engine and for one of its halves, in bytes."""


def halves(
    *budgets: float, queries: int = 1, first_s: float = 1.0, latency_s: float = 0.1
) -> RouteProblem:
    """Return a problem of two halves for workers w0, w1... of these budgets in bytes.

    A query takes `first_s` in the first half and 1 s in the second one.
    """
    seconds = ((0.0, first_s, first_s + 1.0), (0.0, 0.0, 1.0), (0.0, 0.0, 0.0))
    return RouteProblem(
        chain=Chain(
            engine=EngineName("net"),
            sizes=(1, 1, 1),
            weights_before=(0, 50, 100),
            weights_after=(100, 50, 0),
        ),
        workers=tuple(RouteWorker(f"w{n}", seconds, budget) for n, budget in enumerate(budgets)),
        links=Links({}, default=Link(math.inf, latency_s)),
        queries=queries,
    )


def problems(cuts: int, workers: int, *queries: int) -> st.SearchStrategy[RouteProblem]:
    """Draw problems of at most so many cuts and workers, and one of some numbers of queries."""
    return st.builds(
        drawn_problem,
        st.integers(0, 2**32 - 1),
        cuts=st.integers(0, cuts),
        workers=st.integers(0, workers),
        queries=st.sampled_from(queries),
    )
