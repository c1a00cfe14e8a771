"""The controller of J. L. Buijnsters's thesis (TU Delft, 2023), one for each worker.

Allocations of a variant to each engine form a chain from the best to the fastest. A CPU use above
70 % takes it down the chain, one below 50 % up; otherwise it moves to a better allocation of the
same cost if the demand for the engines has shifted. Every variant is loaded, so that changes are
free, while the thesis's took seconds of the CPU.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.variants.load import Load
    from synergai.core.scheduling.variants.allowance import ConvexFront
    from synergai.core.scheduling.variants.margins import Query
    from synergai.domain import EngineName, WorkerId

    Allocation = dict[EngineName, int]

_log = logging.getLogger(__name__)

WINDOW_S: Final = 10
_HIGH: Final = 0.70
_LOW: Final = 0.50
_TARGET: Final = 0.65
_LEAST_SAVING: Final = 0.40
_DOWN_PAUSE_S: Final = 15.0
_UP_PAUSE_S: Final = 30.0
_UNEXPLAINED: Final = 1.2
MOST_S: Final[Mapping[str, float]] = {"cifar10": 0.25}
"""The maximal metric: seconds that variants of an engine must stay below, where they run together.

In the thesis, demand for this one jumps to more than its slowest variants manage.
"""


@dataclass(slots=True)
class _Controller:
    """State of a worker's controller.

    Attributes:
        allocation: number of the variant by engine.
        fronts: variants by engine, as last seen.
        changed_at: when the allocation changed.
        checked_at: when it was last reconsidered.
    """

    changed_at: float
    allocation: Allocation = field(default_factory=dict)
    fronts: dict[EngineName, ConvexFront] = field(default_factory=dict)
    checked_at: float = -math.inf


class Chain:
    """Chooses the variants of the workers' present allocations.

    Args:
        load: what it observes: demand and CPU use.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._controllers: dict[WorkerId, _Controller] = {}

    def choose(self, query: Query) -> int:
        """Return the variant of the worker's present allocation."""
        worker = query.worker.id
        controller = self._controllers.setdefault(worker, _Controller(query.now))
        controller.fronts[query.engine] = query.front
        controller.allocation.setdefault(query.engine, self._best(controller, query.engine))
        if query.now - controller.checked_at >= 1.0:
            controller.checked_at = query.now
            new = self._control(controller, worker, query.now)
            if new != controller.allocation:
                controller.allocation, controller.changed_at = new, query.now
        return min(controller.allocation[query.engine], len(query.front.costs) - 1)

    def _best(self, controller: _Controller, engine: EngineName) -> int:
        """Return the most accurate variant that the maximal metric leaves."""
        front = controller.fronts[engine]
        if len(self._load.workers) == 1 or engine not in MOST_S:
            return len(front.costs) - 1
        return max(sum(_seconds(front, n) < MOST_S[engine] for n in range(len(front.costs))) - 1, 0)

    def _control(self, controller: _Controller, worker: WorkerId, now: float) -> Allocation:
        """Return the allocation from now on."""
        present = controller.allocation
        paused_s = now - controller.changed_at
        if paused_s < _DOWN_PAUSE_S:
            return present
        used = self._load.cpu(worker, now, WINDOW_S)
        chain = self._chain(controller, now)
        costs = [self._cost(controller, each, now) for each in chain]
        cost = self._cost(controller, present, now)
        if sum(used) / len(used) > _HIGH:
            most = (1.0 - _LEAST_SAVING) * cost
            return next((a for a, c in zip(chain, costs, strict=True) if c <= most), chain[-1])
        if paused_s <= _UP_PAUSE_S:
            return present
        if max(used) < _LOW:
            return self._up(chain, costs, present, cost, max(used))
        # The first of the chain that costs no more is the best one for the present demand.
        better, least = next(each for each in zip(chain, costs, strict=True) if each[1] <= cost)
        before, after = _value(controller, present), _value(controller, better)
        return better if (after, -least) > (before, -cost) else present

    def _up(
        self,
        chain: list[Allocation],
        costs: list[float],
        present: Allocation,
        cost: float,
        used: float,
    ) -> Allocation:
        """Return a better allocation with which the CPU use stays below its goal."""
        dearer = [(a, c) for a, c in zip(chain, costs, strict=True) if c > cost]
        if not dearer:
            return present
        if not self._load.by_throughput:  # CPU use does not follow from other measures
            return dearer[-1][0]
        explained = cost * _UNEXPLAINED
        if explained < used:
            _log.info("the profile explains %.0f%% of a CPU use of %.0f%%", 100 * cost, 100 * used)
            used = explained
        most = _TARGET / max(used, 0.01) * cost
        return next((a for a, c in dearer if c <= most), present)

    def _demand(self, engine: EngineName, now: float) -> float:
        """Return the engine's requests per second on one of its workers."""
        return self._load.arrivals_per_s(engine, now) / self._load.workers[engine]

    def _cost(self, controller: _Controller, allocation: Allocation, now: float) -> float:
        """Return the CPU use by the profile."""
        return sum(
            self._demand(engine, now) * _seconds(front, _within(front, allocation, engine))
            for engine, front in controller.fronts.items()
        )

    def _chain(self, controller: _Controller, now: float) -> list[Allocation]:
        """Return the allocations from the best to the fastest, by least accuracy lost per cost."""
        allocation = {engine: self._best(controller, engine) for engine in controller.fronts}
        chain = [dict(allocation)]
        while any(allocation.values()):
            slopes = []
            for engine, at in allocation.items():
                if at:
                    front = controller.fronts[engine]
                    saved = _seconds(front, at) - _seconds(front, at - 1)
                    saved *= max(self._demand(engine, now), 1e-6)
                    slopes.append(((front.values[at] - front.values[at - 1]) / saved, engine))
            allocation[min(slopes)[1]] -= 1
            chain.append(dict(allocation))
        return chain


def _value(controller: _Controller, allocation: Allocation) -> float:
    """Return the sum of the engines' relative accuracies, which the chain gives up least of."""
    return sum(
        front.values[_within(front, allocation, engine)]
        for engine, front in controller.fronts.items()
    )


def _within(front: ConvexFront, allocation: Allocation, engine: EngineName) -> int:
    """Return the engine's variant; fronts may have become shorter."""
    return min(allocation.get(engine, 0), len(front.costs) - 1)


def _seconds(front: ConvexFront, at: int) -> float:
    """Return the profiled cost of a variant."""
    return 1.0 / front.estimates[front.positions[at]].entry.qps
