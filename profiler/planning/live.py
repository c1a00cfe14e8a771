"""``python -m profiler.planning.live``: plans and cuts engines for a gateway, in a child process.

A planner may be a plug-in, and a model comes from a client: neither may end or delay a gateway.
Each line of standard input is an order, and each one of standard output its answer, as JSON.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from profiler.cutting.stages import cut_engine, split_engine
from profiler.dictionary.files import load_dictionary
from profiler.planning.deployment import Need, Wanted, wanted
from profiler.planning.plan_case import Case
from synergai.core.routes.deployment import (
    EngineOrder,
    Orders,
    PlanOrder,
    Refusal,
    SplitOrder,
    StageTime,
    WantedEngine,
)
from synergai.core.routes.links import GATEWAY
from synergai.core.routes.problem import Leg, Route
from synergai.errors import SynergaiError
from synergai.names import is_stage
from synergai.profiles.dictionary import OBSERVED, ConfigurationDictionary
from synergai.runtime.resources import die_with_parent
from synergai.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.core.routes.problem import RouteProblem, RouteWorker
    from synergai.domain import EngineName

QUERIES: Final = 1000
"""Queries of the range that is planned for: the rate of a deployment counts."""

_ADVICE: Final = "the engines in stages share it: raise --memory-mb of the agents, or add workers"


def plan(order: PlanOrder) -> list[WantedEngine]:
    """Return what is wanted of each engine of an order, in their order.

    Raises:
        SynergaiError: the planner has failed.
    """
    entries = _entries(Path(order.dictionary))
    cases: dict[str, Case] = {}
    observed = {engine.name: engine.observed for engine in order.engines}
    found: dict[str, WantedEngine] = {}
    needs = []
    for engine in order.engines:
        try:
            case = cases[engine.name] = _case(order, engine, entries)
        except SynergaiError as error:
            found[engine.name] = _impossible(engine.name, [str(error)])
            continue
        present = _at_positions(engine.present, case.places)
        needs.append(
            Need(
                problem=_as_observed(case, engine.observed),
                present=present,
                cutting=engine.cutting,
                queries_per_s=engine.queries_per_s,
            )
        )
    problems = {need.problem.chain.engine: need.problem for need in needs}
    for name, chosen in wanted(needs, order.planner, order.objective).items() if needs else ():
        found[name] = _answer(cases[name], problems[name], chosen, observed[name])
    return [found[engine.name] for engine in order.engines]


def _entries(path: Path) -> ConfigurationDictionary:
    """Return the profile without what was observed of stages in service.

    That is how often they ran, which others have delayed. What they took is in the order.
    """
    entries = load_dictionary(path) if path.is_file() else ()
    return ConfigurationDictionary(
        each for each in entries if each.label != OBSERVED or not is_stage(each.engine)
    )


def _case(order: PlanOrder, engine: EngineOrder, entries: ConfigurationDictionary) -> Case:
    models = Path(order.models)
    workers = tuple(worker for worker in order.fleet.workers if worker.id in engine.workers)
    names = {GATEWAY, *(worker.id for worker in workers)}
    pairs = tuple(pair for pair in order.fleet.pairs if {pair.source, pair.target} <= names)
    fleet = replace(order.fleet, workers=workers, pairs=pairs)
    queries = 1 if order.objective == "latency" else QUERIES
    return Case(engine.name, models, entries, fleet, GATEWAY, queries, assumes=True)


def _as_observed(case: Case, observed: Iterable[StageTime]) -> RouteProblem:
    """Return the problem of a case with workers as fast as their stages were.

    A worker that has run none is assumed to differ from its profile like those of its class, or
    else like all others.
    """
    positions = {place: position for position, place in enumerate(case.places)}
    workers = {worker.name: worker for worker in case.problem.workers}
    ratios: dict[str, list[float]] = {}
    for each in observed:
        worker = workers.get(each.worker)
        if worker is not None and each.first in positions and each.last in positions:
            expected_s = worker.seconds[positions[each.first]][positions[each.last]]
            if 0 < expected_s < math.inf:
                ratios.setdefault(each.worker, []).append(each.seconds / expected_s)
    slower = {name: fmean(each) for name, each in ratios.items()}
    if not slower:
        return case.problem

    def scaled(worker: RouteWorker) -> RouteWorker:
        alike = [slower[n] for n in slower if case.classes[n] == case.classes[worker.name]]
        factor = slower.get(worker.name) or median(alike or slower.values())
        seconds = tuple(tuple(factor * each for each in row) for row in worker.seconds)
        return replace(worker, seconds=seconds)

    return replace(case.problem, workers=tuple(map(scaled, case.problem.workers)))


def _answer(
    case: Case, problem: RouteProblem, chosen: Wanted, observed: Iterable[StageTime]
) -> WantedEngine:
    name, plan = case.problem.chain.engine, chosen.plan
    measured = {case.classes[each.worker] for each in observed if each.worker in case.classes}
    if plan is None:
        return _impossible(name, [chosen.reason or case.misfit(_ADVICE), *case.notes])
    places = case.places
    seconds = {worker.name: worker.seconds for worker in problem.workers}
    legs = {leg for share in plan.shares for leg in share.route.legs}
    rows = (
        tuple(Leg(leg.worker, places[leg.first], places[leg.last]) for leg in share.route.legs)
        for share in plan.shares
    )
    return WantedEngine(
        name=name,
        routes=tuple(map(Route, rows)) if plan.is_split else (),
        reason="; ".join([chosen.reason, *case.notes, *case.predicted_notes(measured)]),
        interval_s=plan.interval_s,
        times=tuple(
            StageTime(worker, places[first], places[last], seconds[worker][first][last])
            for worker, first, last in legs
        ),
    )


def _impossible(name: EngineName, reasons: Sequence[str]) -> WantedEngine:
    return WantedEngine(name=name, reason="; ".join(reasons), is_possible=False)


def _at_positions(routes: Iterable[Route], places: Sequence[int]) -> tuple[Route, ...]:
    """Return routes between cuts as those of a chain; none if it lacks one of the cuts."""
    positions = {place: position for position, place in enumerate(places)}
    legs = [route.legs for route in routes]
    if not {place for each in legs for leg in each for place in leg[1:]} <= positions.keys():
        return ()
    return tuple(
        Route(tuple(Leg(leg.worker, positions[leg.first], positions[leg.last]) for leg in each))
        for each in legs
    )


def split(order: SplitOrder) -> list[str]:
    """Make stages of an engine; return their names. The agents that get them load them."""
    models = Path(order.models)
    engine = cut_engine(models, order.name)
    tensors = [engine.cuts[number - 1].tensor for number in order.cuts]
    made = split_engine(engine, models, tensors, lambda *_: None, replace=True, declare=True)
    return [definition.name for definition in made]


def main() -> None:
    """Execute the orders on standard input, for the process whose id is the only argument."""
    die_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a planner prints is no answer
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Orders)
        answer: object
        try:
            answer = plan(order) if isinstance(order, PlanOrder) else split(order)
        except SynergaiError as error:
            answer = Refusal(printable(str(error)))
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
