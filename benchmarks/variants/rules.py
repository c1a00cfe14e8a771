"""Rules of others for the choice of variants, for comparison with the gateway's own.

Each is made from the load that it may observe, and chooses one request's variant at a time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from synergai.scheduling.arrivals import ArrivalRate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from synergai.domain import EngineName, WorkerId
    from synergai.scheduling.margins import Query

_MARGIN: Final = 1.2
"""Ratio of the times that rules without a margin of their own count with to the profiled ones."""


class Load:
    """What rules may know of the requests.

    Args:
        workers: how many workers have each engine.
        deadline_s: the time that each request has.
    """

    def __init__(self, workers: Mapping[EngineName, int], deadline_s: float) -> None:
        self.workers = workers
        self.deadline_s = deadline_s
        self._arrivals = {engine: ArrivalRate() for engine in workers}

    def arrived(self, engine: EngineName, now: float) -> None:
        """Count a request."""
        self._arrivals[engine].add(now)

    def arrivals_per_s(self, engine: EngineName, now: float) -> float:
        """Return how many requests of the engine arrived within the last second."""
        return self._arrivals[engine].per_s(now)


class Rule(Protocol):
    """Chooses the variants of requests."""

    def choose(self, query: Query) -> int:
        """Return the number of a variant of the query's front."""


class Largest:
    """Always the most accurate variant."""

    def __init__(self, _load: Load) -> None:
        pass

    def choose(self, query: Query) -> int:
        """Return the last variant of the front."""
        return len(query.front.costs) - 1


class Smallest:
    """Always the fastest variant."""

    def __init__(self, _load: Load) -> None:
        pass

    def choose(self, query: Query) -> int:  # noqa: ARG002 - the interface of all rules
        """Return the first variant of the front."""
        return 0


class SlackFit:
    """The most accurate variant that fits the slack of the request (SuperServe, NSDI '25).

    Without batches, a bucket of its table is a variant. Requests run in order of deadlines, which
    is up to the policy.
    """

    def __init__(self, _load: Load) -> None:
        pass

    def choose(self, query: Query) -> int:
        """Return the slowest variant that completes before the deadline."""
        left_s = query.deadline - query.starts_at
        fits = bisect_right(query.front.costs, left_s / (query.front.fastest_s * _MARGIN))
        return max(0, fits - 1)


class ModelSwitching:
    """The variant with the highest effective accuracy at the present rate (HotCloud '20).

    The share of requests in time is profiled for each variant and rate, here by simulating a queue.
    """

    _STEP: Final = 1.1
    """Ratio of the rates that are profiled."""
    _REQUESTS: Final = 1500

    def __init__(self, load: Load) -> None:
        self._load = load
        self._profiled: dict[tuple[int, int, tuple[float, ...]], int] = {}

    def choose(self, query: Query) -> int:
        """Return the best variant for the rate of the last second."""
        rate = self._load.arrivals_per_s(query.engine, query.now)
        if rate <= 0.0:
            return len(query.front.costs) - 1
        servers = self._load.workers[query.engine]
        # In times of the fastest variant, so that the table does not depend on the pace.
        step = math.ceil(math.log(rate * query.front.fastest_s / servers, self._STEP))
        patience = round(20 * self._load.deadline_s / query.front.fastest_s)
        key = step, patience, query.front.costs
        if key not in self._profiled:
            rates = self._STEP**step * servers
            self._profiled[key] = self._best(query, rates, patience / 20, servers)
        return self._profiled[key]

    def _best(self, query: Query, rate: float, deadline: float, servers: int) -> int:
        gaps = np.random.default_rng(0).exponential(1.0 / rate, self._REQUESTS)
        arrivals = np.cumsum(gaps).tolist()
        effective = [
            value * _share_in_time(arrivals, cost * _MARGIN, deadline, servers)
            for cost, value in zip(query.front.costs, query.front.values, strict=True)
        ]
        return max(range(len(effective)), key=lambda at: (effective[at], -at))


def _share_in_time(
    arrivals: Sequence[float], service: float, deadline: float, servers: int
) -> float:
    """Return the share of requests that `servers` complete in time, first come, first served."""
    free = deque([0.0] * servers)
    in_time = 0
    for arrival in arrivals:
        # With equal service times, servers become free in the order in which they started.
        ends = max(arrival, free.popleft()) + service
        free.append(ends)
        in_time += ends - arrival <= deadline
    return in_time / len(arrivals)


@dataclass(slots=True)
class _Controller:
    """The thesis's controller of one worker.

    Attributes:
        allocation: variant by engine.
        busy_s: seconds that were assigned, by second.
        counts: requests of the last seconds, by engine.
        costs: fastest seconds and costs by engine, as last seen.
    """

    allocation: dict[EngineName, int] = field(default_factory=dict)
    busy_s: dict[int, float] = field(default_factory=dict)
    fronts: dict[EngineName, tuple[float, Query]] = field(default_factory=dict)
    changed_at: float = -math.inf
    checked_at: float = -math.inf


class Chain:
    """The controller of J. L. Buijnsters's thesis (TU Delft, 2023), one for each worker.

    It steps along a chain of allocations, of a variant to each engine, by CPU use within the last
    ten seconds, with the thesis's thresholds and pauses.
    """

    _WINDOW_S: Final = 10
    _HIGH: Final = 0.70
    _LOW: Final = 0.50
    _TARGET: Final = 0.65
    _LEAST_SAVING: Final = 0.40
    _DOWN_PAUSE_S: Final = 15.0
    _UP_PAUSE_S: Final = 30.0
    _UNEXPLAINED: Final = 1.2

    def __init__(self, load: Load) -> None:
        self._load = load
        self._controllers: dict[WorkerId, _Controller] = {}

    def choose(self, query: Query) -> int:
        """Return the variant of the worker's present allocation."""
        controller = self._controllers.get(query.worker.id)
        if controller is None:
            controller = self._controllers[query.worker.id] = _Controller()
            controller.changed_at = query.now
        controller.fronts[query.engine] = query.front.fastest_s, query
        last = len(query.front.costs) - 1
        controller.allocation.setdefault(query.engine, last)
        if query.now - controller.checked_at >= 1.0:
            controller.checked_at = query.now
            self._control(controller, query.now)
        at = min(controller.allocation[query.engine], last)
        self._count(controller, query, query.front.fastest_s * query.front.costs[at])
        return at

    @staticmethod
    def _count(controller: _Controller, query: Query, seconds: float) -> None:
        """Count the seconds that a request will take, in the seconds in which it runs."""
        at = max(query.now, query.worker.free_at(query.now))
        while seconds > 0.0:
            second = math.floor(at)
            part = min(seconds, second + 1 - at) or seconds
            controller.busy_s[second] = controller.busy_s.get(second, 0.0) + part
            at, seconds = second + 1.0, seconds - part

    def _control(self, controller: _Controller, now: float) -> None:
        paused_s = now - controller.changed_at
        if paused_s < self._DOWN_PAUSE_S:
            return
        second = math.floor(now)
        used = [controller.busy_s.get(second - n, 0.0) for n in range(1, self._WINDOW_S + 1)]
        for old in [each for each in controller.busy_s if each < second - self._WINDOW_S]:
            del controller.busy_s[old]
        chain = self._chain(controller, now)
        present = self._cost(controller, controller.allocation, now)
        mean = sum(used) / len(used)
        new: dict[EngineName, int] | None = None
        if mean > self._HIGH:
            most = (1.0 - self._LEAST_SAVING) * present
            cheaper = [each for each in chain if self._cost(controller, each, now) <= most]
            new = cheaper[0] if cheaper else chain[-1]
        elif max(used) < self._LOW and paused_s > self._UP_PAUSE_S:
            explained = max(max(used), 0.01)
            if present * self._UNEXPLAINED < explained:
                explained = present * self._UNEXPLAINED
            most = self._TARGET / max(explained, 0.01) * present
            affordable = [each for each in chain if self._cost(controller, each, now) <= most]
            new = affordable[0] if affordable else None
            if new is not None and self._cost(controller, new, now) <= present:
                new = None
        if new is not None and new != controller.allocation:
            controller.allocation = new
            controller.changed_at = now

    def _demand(self, engine: EngineName, now: float) -> float:
        """Return the engine's requests per second on one of its workers."""
        return self._load.arrivals_per_s(engine, now) / self._load.workers[engine]

    def _cost(
        self, controller: _Controller, allocation: dict[EngineName, int], now: float
    ) -> float:
        """Return the CPU use by the profile."""
        cost = 0.0
        for engine, (fastest_s, query) in controller.fronts.items():
            costs = query.front.costs
            at = min(allocation.get(engine, 0), len(costs) - 1)
            cost += self._demand(engine, now) * fastest_s * costs[at]
        return cost

    def _chain(self, controller: _Controller, now: float) -> list[dict[EngineName, int]]:
        """Return the allocations from the best to the fastest, by least accuracy lost per cost."""
        allocation = {e: len(q.front.costs) - 1 for e, (_, q) in controller.fronts.items()}
        chain = [dict(allocation)]
        while any(allocation.values()):
            slopes = []
            for engine, at in allocation.items():
                if at:
                    fastest_s, query = controller.fronts[engine]
                    costs, values = query.front.costs, query.front.values
                    saved = (costs[at] - costs[at - 1]) * fastest_s
                    saved *= max(self._demand(engine, now), 1e-6)
                    slopes.append(((values[at] - values[at - 1]) / saved, engine))
            allocation[min(slopes)[1]] -= 1
            chain.append(dict(allocation))
        return chain


RULES: Final[Mapping[str, Callable[[Load], Rule]]] = {
    "largest": Largest,
    "smallest": Smallest,
    "chain": Chain,
    "model-switching": ModelSwitching,
    "slackfit": SlackFit,
}
