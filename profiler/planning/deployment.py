"""The deployment that is wanted of several engines, which share workers and links.

Options of each engine are planned with what the others leave, and the best ones of all engines
together are chosen: those that cost least, unless what is deployed costs little more.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from msgspec import Struct

from profiler.planning.moves import is_possible
from profiler.planning.options import cost, staged_options, whole_options
from profiler.planning.plan import RoutePlan, pour
from profiler.planning.tables import MAX_SETS
from profiler.planning.together import Combinations, Engine, Option, combinations
from synergai.core.routes.deployment import Cutting, Objective, Stages, query_shares, stages_of
from synergai.core.routes.problem import Route, RouteProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.domain import EngineName

LEAST_GAIN: Final = 0.15
"""Share of the time that a change of a deployment has to save, by which it costs more than loads.

A plan that splits an engine which fits whole has to save as much."""
_PER_CHANGE: Final = 0.03
"""Share of the time that the change of each further engine has to save."""
MAX_EXCHANGES: Final = 5_000
"""Exchanges of workers that are tried, so that workers keep their stages."""
_PARTS: Final = (1.0, 0.6, 0.4)
"""Shares of the memory of workers with which an engine is planned that does not have them alone."""
_MOST_EFFORT: Final = 5e6
"""Most work for these plans, in sets of workers times pairs of cuts."""
_BEST: Final = 8
"""Best combinations from which each round continues: each engine is planned again with the workers
and links that the others leave."""
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


def wanted(
    needs: Sequence[Need], planner: str, objective: Objective = "throughput"
) -> dict[EngineName, Wanted]:
    """Return the plan of each engine.

    If some are left without one, it is as few as possible, and rather not those that are deployed,
    nor those that are asked most.

    Raises:
        SynergaiError: the planner has failed.
    """
    shares = query_shares([need.queries_per_s for need in needs])
    engines = [
        Engine(need.problem, share, need.queries_per_s, is_deployed=bool(need.present))
        for need, share in zip(needs, shares, strict=True)
    ]
    for need, engine in zip(needs, engines, strict=True):
        for part in _PARTS if len(needs) > 1 else (1.0,):
            _offer(need, engine, engine.remaining((), part), planner)
        _offer_present(need, engine)
    found = _combined(needs, engines, planner, objective)
    return _chosen(needs, engines, found, objective)


def _combined(
    needs: Sequence[Need], engines: Sequence[Engine], planner: str, objective: Objective
) -> Combinations:
    """Return the best combinations of options, after planning each engine with what others leave.

    First, these are the best options of each other engine alone, and then the best ones together.
    """
    found = combinations(engines, objective)
    if len(engines) == 1:
        return found
    to_explore = list(_alone(engines))
    planned: set[object] = set()
    most, known = min(map(_most_plans, needs)), -1
    while known < len(planned) < most:
        known = len(planned)
        for options in to_explore:
            for need, engine in zip(needs, engines, strict=True):
                others = _others(engine, engines, options)
                key = need.problem.chain.engine, *(id(option) for _, option in others)
                if key not in planned and len(planned) < most:
                    planned.add(key)
                    _offer(need, engine, engine.remaining(others), planner)
        found = combinations(engines, objective)
        to_explore = [found.options(engines, number) for number in found.promising(_BEST)]
    return found


def _most_plans(need: Need) -> int:
    """Return how many times engines are planned with what others leave."""
    workers, cuts = len(need.problem.workers), need.problem.chain.end
    return max(_BEST, int(_MOST_EFFORT / (min(2**workers, MAX_SETS) * cuts**2)))


def _alone(engines: Sequence[Engine]) -> Iterator[list[Option | None]]:
    """Yield the fastest options of each engine, without any of the others."""
    for engine in engines:
        for option in sorted(engine.options, key=lambda each: max(each.busy_s.values()))[:_BEST]:
            yield [option if each is engine else None for each in engines]


def _others(
    engine: Engine, engines: Sequence[Engine], options: Sequence[Option | None]
) -> list[tuple[Engine, Option]]:
    return [
        (other, option)
        for other, option in zip(engines, options, strict=True)
        if other is not engine and option is not None
    ]


def _may_split(need: Need) -> bool:
    return need.cutting == "auto" or (need.cutting == "needed" and not whole_options(need.problem))


def _offer(need: Need, engine: Engine, problem: RouteProblem, planner: str) -> None:
    """Add the options of an engine with what is left for it."""
    stages = stages_of(need.present)
    for plan in whole_options(problem):
        engine.add(plan, changes=bool(stages))
    for plan in whole_options(need.problem):
        engine.add(plan, changes=bool(stages), takes_turns=True)
    for plan in staged_options(problem, planner) if _may_split(need) else ():
        # While a worker has the whole engine, requests run in no stages beside it.
        if all(len(share.route.legs) > 1 for share in plan.shares):
            engine.add(plan, changes=_stages(plan) != stages)


def _offer_present(need: Need, engine: Engine) -> None:
    """Add what is deployed, if it is still possible."""
    problem, routes = need.problem, need.present
    if routes and _may_split(need) and all(is_possible(problem, route) for route in routes):
        engine.add(RoutePlan(pour(problem, routes), "as deployed"), changes=False)


def _stages(plan: RoutePlan) -> Stages:
    return stages_of(share.route for share in plan.shares)


def _chosen(
    needs: Sequence[Need], engines: Sequence[Engine], found: Combinations, objective: Objective
) -> dict[EngineName, Wanted]:
    """Return the plans of the best combination, or what is deployed if that costs little more."""
    able = found.lacking == found.lacking[0]
    costs = np.where(able, (1 + _PER_CHANGE * found.changes) * found.costs, np.inf)
    kept = np.where(able & (found.changes == 0), found.costs, np.inf)
    number = int(costs.argmin())
    if (1 - LEAST_GAIN) * kept.min() < found.costs[number]:
        number = int(kept.argmin())
    options = found.options(engines, number)
    answers: dict[EngineName, Wanted] = {}
    for position, (need, engine) in enumerate(zip(needs, engines, strict=True)):
        option = options[position]
        if option is None:
            wanted = Wanted(None, "" if _may_split(need) else "it may not be cut")
        elif not option.plan.is_split:
            wanted = Wanted(option.plan, "it runs whole")
        else:
            problem = engine.remaining(_others(engine, engines, options))
            routes = [share.route for share in option.plan.shares]
            plan = RoutePlan(pour(problem, routes), option.plan.name)
            if option.changes:
                plan = _rearranged(need, problem, plan, objective)
                options[position] = engine.option(plan, changes=True)
            whole = [not each.plan.is_split for each in (*engine.options, option)]
            is_whole = able & np.array(whole)[found.chosen[:, position]]
            part = found.costs[number] / found.costs[is_whole].min(initial=math.inf)
            wanted = Wanted(plan, _reason(option, part, objective))
        answers[need.problem.chain.engine] = wanted
    return answers


def _reason(option: Option, part: float, objective: Objective) -> str:
    """Return why stages are wanted, which cost a part of what the whole engine does."""
    if not option.changes:
        return "no other plan saves enough to be worth a change"
    if not part:
        return "no worker has the memory for the whole engine"
    return f"stages save {1 - part:.0%} of what the whole engine takes, by {objective}"


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
    if not kept or not plan.is_split or math.perm(len(names), len(used)) > MAX_EXCHANGES:
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
