"""What a planner of routes has to solve, and what a route is and takes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from synergai.core.routes.links import GATEWAY, Hop
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from synergai.core.routes.links import Links
    from synergai.domain import EngineName


class Chain(Struct, frozen=True, kw_only=True):
    """An engine and its cuts.

    The positions of a chain are its inputs, its cuts in the order of the data flow, and its
    outputs, numbered from 0. A stage is the part between two positions.

    Attributes:
        sizes: bytes of the tensors of one query, by position.
        weights_before: bytes of the weights that the part before each position needs.
        weights_after: bytes of the weights that the part behind it needs.
        shares: share of the queries that continue behind each position if a stage with an early
            exit ends there, and 1 at the ends; empty without exits.
    """

    engine: EngineName
    sizes: tuple[int, ...]
    weights_before: tuple[int, ...]
    weights_after: tuple[int, ...]
    shares: tuple[float, ...] = ()

    @property
    def end(self) -> int:
        """Number of the last position, the outputs."""
        return len(self.sizes) - 1

    def weights(self, first: int, last: int) -> int:
        """Return the bytes of the weights of the stage between two positions."""
        # What is needed both before its end and behind its begin.
        return self.weights_before[last] + self.weights_after[first] - self.weights_before[-1]


SESSION_PER_WEIGHT: Final = 2.9
"""Most memory of a session per byte of its weights, its load included, as measured with ONNX
Runtime where weights prevail."""
HOST_BYTES: Final = 68_000_000
"""Memory of an engine host without a session. Hosts with plain convolutions took up to 10 MB more,
and halves of ResNet50 less: a stage that turns out to be too large is planned with less memory."""


class Leg(NamedTuple):
    """A stage on a worker: the part of a chain from one position to another."""

    worker: str
    first: int
    last: int


class Route(Struct, frozen=True):
    """Legs in the order of the data flow, from the inputs to the outputs, each on its own worker.

    A route of one leg runs the whole engine on one worker.
    """

    legs: tuple[Leg, ...]


class RouteTimes(Struct, frozen=True):
    """What a route takes, predicted or measured.

    Attributes:
        stages: seconds of one query in each leg, the mean over all that begin.
        hops: ways to the first leg, between the legs, and of the results, likewise.
    """

    stages: tuple[float, ...]
    hops: tuple[Hop, ...]

    @property
    def latency_s(self) -> float:
        """Mean time of one query alone."""
        return sum(self.stages) + sum(hop.seconds for hop in self.hops)

    @property
    def interval_s(self) -> float:
        """Time between two queries of a range, that of the slowest stage or hop."""
        return max(*self.stages, *(hop.interval_s for hop in self.hops))

    def seconds(self, queries: int) -> float:
        """Return the time of a range of queries: the first fills the route, the others follow."""
        return self.latency_s + (queries - 1) * self.interval_s


class RouteWorker(Struct, frozen=True):
    """A worker in the configuration that it would run stages in.

    Attributes:
        seconds: time of one query in the stage between two positions, as ``seconds[first][last]``.
        budget_bytes: memory that its leg may take.
        watts: power while it runs the engine; 0 if that is not known.
    """

    name: str
    seconds: tuple[tuple[float, ...], ...]
    budget_bytes: float = math.inf
    watts: float = 0.0


class RouteProblem(Struct, frozen=True, kw_only=True):
    """A chain, and the workers and links over which it may run.

    Attributes:
        source: host at which queries arise and to which results return.
        queries: number of queries: with 1, the latency of a query matters, with more, their end.
        current: the running route, from which online searches start.
    """

    chain: Chain
    workers: tuple[RouteWorker, ...]
    links: Links
    source: str = GATEWAY
    queries: int = 1
    current: Route | None = None

    def fits(self, worker: RouteWorker, first: int, last: int) -> bool:
        """Return whether a stage fits into the memory that a worker has for it."""
        return self.memory_bytes(first, last) <= worker.budget_bytes

    def memory_bytes(self, first: int, last: int) -> float:
        """Return the memory that an engine host with a stage takes."""
        return HOST_BYTES + SESSION_PER_WEIGHT * self.chain.weights(first, last)

    def times(self, route: Route) -> RouteTimes:
        """Return what a route takes by the times of its stages and its links.

        A query that has left at an early exit takes nothing of what is behind. Its result returns
        from there; the interval of the last hop is that of all results, which are small.

        Raises:
            InvalidInput: the legs are not one row of stages on different workers that they fit.
        """
        workers = {worker.name: worker for worker in self.workers}
        legs, chain = route.legs, self.chain
        joined = all(before.last == behind.first for before, behind in pairwise(legs))
        if not (legs and joined and legs[0].first == 0 and legs[-1].last == chain.end):
            raise InvalidInput(f"a route of {chain.engine} must cover it in order: {legs}")
        if len({leg.worker for leg in legs}) < len(legs):
            raise InvalidInput(f"a route uses each worker once: {legs}")
        for worker, first, last in legs:
            if worker not in workers:
                raise InvalidInput(f"a route uses the unknown worker {worker!r}")
            if not (first < last and self.fits(workers[worker], first, last)):
                raise InvalidInput(f"stage {first}-{last} does not fit on {worker}")
        shares = [chain.shares[leg.first] if chain.shares else 1.0 for leg in legs]
        stages, hops, returning_s, sender = [], [], 0.0, self.source
        for leg, share, after in zip(legs, shares, [*shares[1:], 0.0], strict=True):
            stages.append(share * workers[leg.worker].seconds[leg.first][leg.last])
            hop = self.links.hop(sender, leg.worker, chain.sizes[leg.first])
            hops.append(Hop(share * hop.seconds, share * hop.interval_s))
            result = self.links.hop(leg.worker, self.source, chain.sizes[-1])
            returning_s += (share - after) * result.seconds
            sender = leg.worker
        hops.append(Hop(returning_s, result.interval_s))
        return RouteTimes(tuple(stages), tuple(hops))


def least_memory_bytes(problem: RouteProblem, legs: int) -> float:
    """Return the memory that each worker needs for some route of at most so many legs."""
    end = problem.chain.end
    least = [0.0, *(problem.memory_bytes(0, last) for last in range(1, end + 1))]
    for _ in range(legs - 1):
        least = [0.0] + [
            min(max(least[first], problem.memory_bytes(first, last)) for first in range(last))
            for last in range(1, end + 1)
        ]
    return least[end]
