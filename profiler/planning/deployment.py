"""The deployment that is wanted of several engines, which share workers and links.

The engines are planned one after the other: each takes memory from its workers, and time from its
workers and links. The order in which they get the best plans together is kept.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise, permutations
from math import perm
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from profiler.planning.moves import is_possible
from profiler.planning.options import choose, cost, staged_options, whole_options
from profiler.planning.plan import RoutePlan, pour
from synergai.core.routes.deployment import Cutting, Objective, slowdown, stages_of
from synergai.core.routes.problem import Route, RouteProblem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from synergai.domain import EngineName

LEAST_GAIN: Final = 0.15
"""Share of the time that a change of a deployment has to save, by which it costs more than loads.

A plan that splits an engine which fits whole has to save as much."""
MAX_ORDERED: Final = 3
"""Engines of which all orders are tried."""
MAX_EXCHANGES: Final = 5_000
"""Exchanges of workers that are tried, so that workers keep their stages."""
_IDLE: Final = 0.1
"""Share of the queries of the engine with most that others count with at least: they may begin."""
_ALIKE: Final = 0.01
"""Relative difference of costs that does not matter."""


class Need(Struct, frozen=True, kw_only=True):
    """An engine to deploy.

    Attributes:
        problem: the budgets of its workers are for all engines together.
        present: its routes so far; empty if it runs whole.
        queries_per_s: rate at which it is asked; 0 if that is not known.
    """

    problem: RouteProblem
    present: tuple[Route, ...] = ()
    cutting: Cutting = "needed"
    queries_per_s: float = 0.0


class Wanted(NamedTuple):
    """The plan for an engine; None if none is possible."""

    plan: RoutePlan | None
    reason: str


class _Used:
    """What the engines that are planned take of workers and links.

    Attributes:
        memory_bytes: by worker.
        shares: shares of their time, by worker or pair of hosts.
    """

    def __init__(self) -> None:
        self.memory_bytes: defaultdict[str, float] = defaultdict(float)
        self.shares: defaultdict[object, float] = defaultdict(float)

    def add(self, need: Need, plan: RoutePlan) -> None:
        problem = need.problem
        for leg in {leg for share in plan.shares for leg in share.route.legs}:
            self.memory_bytes[leg.worker] += problem.memory_bytes(leg.first, leg.last)
        for share in plan.shares:
            rate = need.queries_per_s * plan.interval_s / share.interval_s
            legs = share.route.legs
            for leg, seconds in zip(legs, share.times.stages, strict=True):
                self.shares[leg.worker] += rate * seconds
            hosts = [problem.source, *(leg.worker for leg in legs), problem.source]
            positions = [0, *(leg.last for leg in legs)]
            for (source, target), position in zip(pairwise(hosts), positions, strict=True):
                size = problem.chain.sizes[position]
                for pair, link in problem.links.way(source, target).items():
                    self.shares[pair] += rate * link.hop(size).interval_s

    def left(self, problem: RouteProblem) -> RouteProblem:
        """Return the problem of an engine with what is left for it."""
        workers = tuple(
            replace(
                worker,
                seconds=tuple(
                    tuple(slowdown(self.shares[worker.name]) * seconds for seconds in row)
                    for row in worker.seconds
                ),
                budget_bytes=worker.budget_bytes - self.memory_bytes[worker.name],
            )
            for worker in problem.workers
        )
        pairs = [pair for pair in self.shares if isinstance(pair, tuple) and self.shares[pair]]
        links = problem.links.slowed({pair: slowdown(self.shares[pair]) for pair in pairs})
        return replace(problem, workers=workers, links=links)


def wanted(
    needs: Sequence[Need], planner: str, objective: Objective = "throughput"
) -> dict[EngineName, Wanted]:
    """Return the plan of each engine.

    If some are left without one, the others are planned on as few workers as they need.

    Raises:
        SynergaiError: the planner has failed.
    """
    largest = sorted(needs, key=lambda need: -need.problem.chain.weights(0, need.problem.chain.end))
    orders = list(permutations(largest)) if len(largest) <= MAX_ORDERED else [largest]
    plans = [_in_order(order, planner, objective, sparing=False) for order in orders]
    if len(needs) > 1 and all(_cost(needs, each, objective)[0] for each in plans):
        plans += [_in_order(order, planner, objective, sparing=True) for order in orders]
    best = min(plans, key=lambda each: _cost(needs, each, objective))
    lacking, best_cost = _cost(needs, best, objective)
    for each in plans:
        if _keeps_all(needs, each) and _cost(needs, each, objective) < (
            lacking,
            best_cost / (1 - LEAST_GAIN),
        ):
            return each
    return best


def _in_order(
    needs: Sequence[Need], planner: str, objective: Objective, *, sparing: bool
) -> dict[EngineName, Wanted]:
    used, found = _Used(), {}
    for need in needs:
        chosen = _plan(need, used.left(need.problem), planner, objective, sparing=sparing)
        found[need.problem.chain.engine] = chosen
        if chosen.plan is not None:
            used.add(need, chosen.plan)
    return found


def _keeps_all(needs: Sequence[Need], plans: Mapping[EngineName, Wanted]) -> bool:
    """Return whether plans leave every engine as it is deployed."""
    return all(
        stages_of(share.route for share in plan.shares if plan.is_split) == stages_of(need.present)
        for need in needs
        if (plan := plans[need.problem.chain.engine].plan) is not None
    )


def _cost(
    needs: Sequence[Need], plans: Mapping[EngineName, Wanted], objective: Objective
) -> tuple[int, float]:
    """Return the engines without a plan, and the cost of the others, by their shares of queries."""
    least = _IDLE * max(need.queries_per_s for need in needs) or 1.0
    chosen = [(need, plans[need.problem.chain.engine].plan) for need in needs]
    costs = [
        max(least, need.queries_per_s) * cost(need.problem, plan, objective)
        for need, plan in chosen
        if plan is not None
    ]
    return len(chosen) - len(costs), sum(costs)


def _plan(
    need: Need, problem: RouteProblem, planner: str, objective: Objective, *, sparing: bool
) -> Wanted:
    """Plan one engine with what is left for it; with `sparing`, on as few workers as it needs."""
    alone = whole_options(need.problem)
    # Engines that fit whole on a worker, but not beside the others, take turns there.
    options = whole_options(problem) or alone
    may_split = need.cutting == "auto" or (need.cutting == "needed" and not alone)
    if may_split:
        # While a worker has the whole engine, requests run in no stages beside it.
        staged = (each for each in staged_options(problem, planner) if _has_no_whole(each))
        options = [*options, *staged]
    if not options:
        return Wanted(None, "" if may_split else "it may not be cut")
    most = min(map(_count_workers, options)) if sparing else len(problem.workers)
    options = [each for each in options if _count_workers(each) <= most]
    best = choose(problem, options, LEAST_GAIN, objective=objective)
    best_cost = cost(problem, best, objective)
    present = _present(need, problem) if may_split else None
    if present is not None and _count_workers(present) > most:
        present = None
    best = _rearranged(need, problem, best, objective)
    if present is not None and best_cost > (1 - LEAST_GAIN) * cost(problem, present, objective):
        return Wanted(present, "no other plan saves enough to be worth a change")
    if not best.is_split:
        return Wanted(best, "it runs whole")
    if not alone:
        return Wanted(best, "no worker has the memory for the whole engine")
    whole = min(cost(problem, each, objective) for each in options if not each.is_split)
    saved = f"stages save {1 - best_cost / whole:.0%} of what the whole engine takes"
    return Wanted(best, f"{saved}, by {objective}")


def _rearranged(
    need: Need, problem: RouteProblem, plan: RoutePlan, objective: Objective
) -> RoutePlan:
    """Return a plan in which the workers of the present routes keep their stages, if that is alike.

    That is the plan with its workers exchanged, with each other and with those of the routes.
    """
    kept = {leg for route in need.present for leg in route.legs}
    known = {worker.name for worker in problem.workers}
    used = [*{leg.worker: None for share in plan.shares for leg in share.route.legs}]
    names = sorted({*used, *(leg.worker for leg in kept if leg.worker in known)})
    if not kept or not plan.is_split or perm(len(names), len(used)) > MAX_EXCHANGES:
        return plan
    most, best = len(kept & {leg for each in plan.shares for leg in each.route.legs}), plan
    limit = (1 + _ALIKE) * cost(problem, plan, objective)
    for chosen in permutations(names, len(used)):
        renamed = dict(zip(used, chosen, strict=True))
        routes = [
            Route(tuple(leg._replace(worker=renamed[leg.worker]) for leg in share.route.legs))
            for share in plan.shares
        ]
        legs = {leg for route in routes for leg in route.legs}
        if len(kept & legs) > most and all(is_possible(problem, route) for route in routes):
            other = RoutePlan(pour(problem, routes), plan.name)
            if cost(problem, other, objective) <= limit:
                most, best = len(kept & legs), other
    return best


def _has_no_whole(plan: RoutePlan) -> bool:
    return all(len(share.route.legs) > 1 for share in plan.shares)


def _count_workers(plan: RoutePlan) -> int:
    return len({leg.worker for share in plan.shares for leg in share.route.legs})


def _present(need: Need, problem: RouteProblem) -> RoutePlan | None:
    """Return the plan that is deployed, if it is still possible."""
    routes = need.present
    if not routes or not all(is_possible(problem, route) for route in routes):
        return None
    return RoutePlan(pour(problem, routes), "as deployed")
