"""Options of several engines that share workers and links, and which of them are best together."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from profiler.planning.plan import RoutePlan
    from synergai.core.routes.deployment import Objective
    from synergai.core.routes.problem import RouteProblem

_T = TypeVar("_T", np.float64, np.int64)

MOST_PARTIAL: Final = 200
"""Combinations of the options of some engines to which those of the next one are added."""
NO_PLAN: Final = 1_000_000
"""Engines that take turns which are better than one without a plan."""
_DEPLOYED: Final = 10_000
_SHARE: Final = 1000
"""What else counts of an engine without a plan: that it is deployed, and then its whole share."""
_MOST_BUSY: Final = 0.9
"""Share of a worker that other engines take at most, as far as an engine is concerned."""
_LEAST_S: Final = 1e-12


class Option(NamedTuple):
    """A plan of an engine, and what one query takes.

    Attributes:
        busy_s: time of each worker, and of the link of each pair of hosts.
        memory_bytes: by worker.
        takes_turns: the engine has memory of its workers only while others do not run.
        changes: it differs from what is deployed.
    """

    plan: RoutePlan
    latency_s: float
    joules: float
    busy_s: Mapping[object, float]
    memory_bytes: Mapping[str, float]
    takes_turns: bool
    changes: bool


class Engine:
    """An engine, and options to run it.

    Attributes:
        problem: the budgets of its workers are for all engines together.
        share: of the queries of all engines.
        queries_per_s: rate at which it is asked; 0 if that is not known.
        lack: what it counts without a plan.
        options: none twice.
    """

    def __init__(
        self, problem: RouteProblem, share: float, queries_per_s: float, *, is_deployed: bool
    ) -> None:
        self.problem = problem
        self.share = share
        self.queries_per_s = queries_per_s
        self.lack = NO_PLAN + _DEPLOYED * is_deployed + round(_SHARE * share)
        self.options: list[Option] = []
        self._known: set[object] = set()

    def add(self, plan: RoutePlan, *, changes: bool, takes_turns: bool = False) -> None:
        """Add a plan, unless it is known."""
        key = frozenset(share.route for share in plan.shares), takes_turns
        if key not in self._known:
            self._known.add(key)
            self.options.append(self.option(plan, changes=changes, takes_turns=takes_turns))

    def option(self, plan: RoutePlan, *, changes: bool, takes_turns: bool = False) -> Option:
        """Return a plan as an option."""
        problem, busy_s = self.problem, _busy_s(self.problem, plan)
        legs = {leg for share in plan.shares for leg in share.route.legs}
        memory: defaultdict[str, float] = defaultdict(float)
        for leg in () if takes_turns else legs:
            memory[leg.worker] += problem.memory_bytes(leg.first, leg.last)
        latency_s = min(problem.times(share.route).latency_s for share in plan.shares)
        joules = sum(each.watts * busy_s[each.name] for each in problem.workers)
        return Option(plan, latency_s, joules, busy_s, memory, takes_turns, changes)

    def remaining(self, others: Iterable[tuple[Engine, Option]], part: float = 1.0) -> RouteProblem:
        """Return the problem of this engine with what others leave of workers and links.

        Between two of its queries, these take the time of theirs, as many as the shares say.

        Args:
            part: share of the memory that is left.
        """
        taken_s: defaultdict[object, float] = defaultdict(float)
        memory: defaultdict[str, float] = defaultdict(float)
        for engine, option in others:
            for resource, seconds in option.busy_s.items():
                taken_s[resource] += engine.share / self.share * seconds
            for worker, size in option.memory_bytes.items():
                memory[worker] += size
        problem = self.problem
        mean = sum(problem.chain.sizes) / len(problem.chain.sizes)
        workers = tuple(
            replace(
                each,
                seconds=tuple(
                    tuple(taken_s[each.name] + seconds for seconds in row) for row in each.seconds
                ),
                budget_bytes=part * (each.budget_bytes - memory[each.name]),
            )
            for each in problem.workers
        )
        slower = {  # as if all tensors had the mean size
            pair: 1 + taken_s[pair] / problem.links.hop(pair[0], pair[1], mean).interval_s
            for pair in taken_s
            if isinstance(pair, tuple)
        }
        return replace(problem, workers=workers, links=problem.links.slowed(slower))


def _busy_s(problem: RouteProblem, plan: RoutePlan) -> defaultdict[object, float]:
    """Return what a query takes of workers and links, in the mean over the routes of a plan."""
    found: defaultdict[object, float] = defaultdict(float)
    chain = problem.chain
    continuing = chain.shares or (1.0,) * len(chain.sizes)
    for share in plan.shares:
        part, legs = plan.interval_s / share.interval_s, share.route.legs
        for leg, seconds in zip(legs, problem.times(share.route).stages, strict=True):
            found[leg.worker] += part * seconds
        hosts = [problem.source, *(leg.worker for leg in legs), problem.source]
        positions = [0, *(leg.last for leg in legs)]
        for way, position in zip(pairwise(hosts), positions, strict=True):
            for pair, link in problem.links.way(*way).items():
                interval_s = link.hop(chain.sizes[position]).interval_s
                found[pair] += part * continuing[position] * interval_s
    return found


class Combinations(NamedTuple):
    """Options of engines together, those first that leave fewest engines without one.

    Attributes:
        chosen: number of the option of each engine, by combination; -1 for none.
        lacking: number of engines that have none or take turns, those without one first; of as many
            without one, those that are deployed count most, and then those that are asked most.
        changes: number of engines whose deployment changes.
        memory_bytes: memory of all workers together.
        costs: what an objective minimises, see `profiler.planning.options.cost`.
    """

    chosen: NDArray[np.int64]
    lacking: NDArray[np.int64]
    changes: NDArray[np.int64]
    memory_bytes: NDArray[np.float64]
    costs: NDArray[np.float64]

    def take(self, order: NDArray[np.int64]) -> Combinations:
        """Return some combinations in an order."""
        return Combinations(
            self.chosen[order],
            self.lacking[order],
            self.changes[order],
            self.memory_bytes[order],
            self.costs[order],
        )

    def promising(self, count: int) -> list[int]:
        """Return combinations next to which others may be better.

        If an engine has no plan, these leave it the most memory.
        """
        if self.lacking[0] < NO_PLAN:
            return list(range(min(count, len(self.costs))))
        able = self.lacking == self.lacking[0]
        found: list[int] = np.lexsort((self.memory_bytes, ~able))[:count].tolist()
        return found

    def options(self, engines: Sequence[Engine], number: int) -> list[Option | None]:
        """Return the options of a combination."""
        chosen = zip(engines, self.chosen[number].tolist(), strict=True)
        return [None if option < 0 else engine.options[option] for engine, option in chosen]


def combinations(engines: Sequence[Engine], objective: Objective) -> Combinations:
    """Return the best combinations of options, the best one first.

    All of one or two engines are considered, and of more of them the most promising ones.
    """
    workers = {each.name: each.budget_bytes for one in engines for each in one.problem.workers}
    used = {each for one in engines for option in one.options for each in option.busy_s}
    resources = [*workers, *sorted(used - workers.keys(), key=str)]
    tables = [_Table.of(each, list(workers), resources) for each in engines]
    chosen = np.zeros((1, 0), dtype=int)
    for count, table in enumerate(tables, 1):
        numbers = np.append(np.arange(len(table.joules) - 1), -1)
        repeated = np.repeat(chosen, len(numbers), axis=0)
        chosen = np.column_stack([repeated, np.tile(numbers, len(chosen))])
        parts = [table.take(row) for table, row in zip(tables, chosen.T, strict=False)]
        memory = _sum([each.memory for each in parts])
        fits = np.all(memory <= np.array(list(workers.values())), axis=1)
        chosen, parts = chosen[fits], [each.take(fits) for each in parts]
        found = Combinations(
            chosen,
            _sum([each.lacking for each in parts]),
            _sum([each.changes for each in parts]),
            memory[fits].sum(axis=1),
            _costs(engines, parts, len(workers), objective),
        )
        order = np.lexsort((found.costs, found.lacking))
        if count < len(engines):
            unchanged = order[found.changes[order] == 0][:1]
            order = np.append(order[:MOST_PARTIAL], unchanged)
        found = found.take(order)
        chosen = found.chosen
    return found


class _Table(NamedTuple):
    """What the options of an engine take for its share of a query; the last row is for none."""

    busy_s: NDArray[np.float64]
    memory: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    joules: NDArray[np.float64]
    lacking: NDArray[np.int64]
    changes: NDArray[np.int64]

    @classmethod
    def of(cls, engine: Engine, workers: Sequence[str], resources: Sequence[object]) -> _Table:
        share, options = engine.share, engine.options
        busy_s = [[each.busy_s.get(name, 0.0) for name in resources] for each in options]
        memory = [[each.memory_bytes.get(name, 0.0) for name in workers] for each in options]
        return cls(
            share * np.array([*busy_s, [0.0] * len(resources)]),
            np.array([*memory, [0.0] * len(workers)]),
            share * np.array([*(each.latency_s for each in options), 0.0]),
            share * np.array([*(each.joules for each in options), 0.0]),
            np.array([*(int(each.takes_turns) for each in options), engine.lack]),
            np.array([*(int(each.changes) for each in options), 0]),
        )

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> _Table:
        return _Table(
            self.busy_s[rows],
            self.memory[rows],
            self.latency_s[rows],
            self.joules[rows],
            self.lacking[rows],
            self.changes[rows],
        )


def _costs(
    engines: Sequence[Engine], parts: Sequence[_Table], workers: int, objective: Objective
) -> NDArray[np.float64]:
    """Return the cost of combinations, by the part of each engine."""
    if objective == "energy":
        return _sum([each.joules for each in parts])
    total = _sum([each.busy_s for each in parts])
    rate = sum(engine.queries_per_s for engine in engines)
    latency_s = np.zeros(len(total))
    for each in parts:  # while one engine runs on a worker, others wait
        own = each.busy_s[:, :workers]
        others = np.minimum(rate * (total[:, :workers] - own), _MOST_BUSY)
        latency_s += each.latency_s + (own * others / (1 - others)).sum(axis=1)
    queries = engines[0].problem.queries
    slowest: NDArray[np.float64] = total.max(axis=1)
    costs = (latency_s + (queries - 1) * slowest) / queries
    if objective == "fairness":
        busy_s = np.maximum(total[:, :workers], _LEAST_S)
        costs *= workers * (busy_s**2).sum(axis=1) / busy_s.sum(axis=1) ** 2
    return costs


def _sum(arrays: Sequence[NDArray[_T]]) -> NDArray[_T]:
    """Return the sum over engines."""
    total: NDArray[_T] = np.sum(arrays, axis=0)
    return total
