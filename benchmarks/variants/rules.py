"""Rules of others for the choice of variants, for comparison with the gateway's own.

Each is made from the load that it may observe, and chooses one request's variant at a time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from benchmarks.variants.chain import Chain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.variants.load import Load
    from synergai.core.scheduling.variants.margins import Query

_MARGIN: Final = 1.2
"""Ratio of the times that rules without a margin of their own count with to the profiled ones."""


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


class INFaaS:
    """The fastest variant that reaches the accuracy asked for (INFaaS, ATC '21).

    Its clients state the least accuracy and the longest latency; it minimises the cost. With no
    accuracy asked for, it is `Smallest`, as J. L. Buijnsters's thesis found.
    """

    _LEAST: Final = 0.95
    """Accuracy that all requests ask for, relative to the best variant's."""

    def __init__(self, _load: Load) -> None:
        pass

    def choose(self, query: Query) -> int:
        """Return the first variant of the front that is accurate enough."""
        return bisect_left(query.front.values, self._LEAST)


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


RULES: Final[Mapping[str, Callable[[Load], Rule]]] = {
    "largest": Largest,
    "smallest": Smallest,
    "infaas": INFaaS,
    "chain": Chain,
    "model-switching": ModelSwitching,
    "slackfit": SlackFit,
}
