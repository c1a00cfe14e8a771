"""Deployments of engines in stages: what is to be planned, what is wanted, and the difference.

A deployment says for each engine which stages run on which workers. It is planned in a process of
its own, by `profiler.planning.live`, to which the gateway sends orders as JSON.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct

from synergai.core.routes.fleet import FleetFile  # noqa: TC001 - msgspec reads the annotations
from synergai.core.routes.problem import Leg, Route
from synergai.domain import EngineName  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Cutting: TypeAlias = Literal["never", "needed", "auto"]
"""When an engine may be cut: never, if no worker can hold it whole, or also if that pays."""
DeploymentState: TypeAlias = Literal[
    "planning", "cutting", "placing", "loading", "deployed", "whole", "failed"
]
Objective: TypeAlias = Literal["throughput", "latency", "fairness", "energy"]
"""What a plan is to have the best of."""
Stage: TypeAlias = tuple[int, int]
"""The cuts between which a stage is, as in its name."""
Stages: TypeAlias = "dict[Stage, frozenset[str]]"
"""Workers by stage."""


class StageTime(Struct, frozen=True):
    """What a query of a stage, or of the whole engine, takes on a worker."""

    worker: str
    first: int
    last: int
    seconds: float


class EngineOrder(Struct, frozen=True, kw_only=True):
    """An engine to plan.

    Attributes:
        name: with its version.
        workers: those that may have it or stages of it.
        present: its routes so far, whose legs are between numbers of cuts; empty if it runs whole.
        cutting: when it may be cut.
        observed: stages that have run; they tell how fast workers are.
        queries_per_s: rate at which it is asked; 0 if that is not known.
    """

    name: EngineName
    workers: tuple[str, ...]
    present: tuple[Route, ...] = ()
    cutting: Cutting = "needed"
    observed: tuple[StageTime, ...] = ()
    queries_per_s: float = 0.0


class PlanOrder(Struct, frozen=True, kw_only=True, tag="plan"):
    """What is to be planned.

    Attributes:
        models: model directory with the engines.
        dictionary: file of the configuration dictionary, which may not exist.
        fleet: `memory_mb` is for all engines of a worker together.
        planner: name of a planner of routes.
        objective: of their plans.
    """

    models: str
    dictionary: str
    fleet: FleetFile
    engines: tuple[EngineOrder, ...]
    planner: str
    objective: Objective = "throughput"


class WantedEngine(Struct, frozen=True, kw_only=True):
    """What a plan wants of an engine.

    Attributes:
        routes: its routes, whose legs are between numbers of cuts; empty if it runs whole.
        reason: why, or why nothing can be planned, for people.
        is_possible: whether there is a plan. Without one, what is deployed stays.
        interval_s: predicted time between two queries of a long range.
        times: predicted times of the stages.
    """

    name: EngineName
    routes: tuple[Route, ...] = ()
    reason: str = ""
    is_possible: bool = True
    interval_s: float = 0.0
    times: tuple[StageTime, ...] = ()


class SplitOrder(Struct, frozen=True, kw_only=True, tag="split"):
    """Cut an engine of a model directory into the stages between some of its cuts."""

    models: str
    name: EngineName
    cuts: tuple[int, ...]


class Refusal(Struct, frozen=True):
    """The answer to an order that cannot be executed, and why, for people."""

    reason: str


class EngineDeployment(Struct, frozen=True, kw_only=True):
    """An engine that is deployed in stages, or is to be, as an operator sees it.

    Attributes:
        state: the step that is under way; ``deployed`` once all are done, ``whole`` if it is to
            run whole, ``failed`` if the last step or plan has failed.
        wanted: its routes by the last plan, whose legs are between numbers of cuts.
        deployed: those that stages in the store make up.
        reason: why this is wanted.
        fault: why it is not deployed; empty if nothing is wrong.
        predicted_per_s: queries per second that the plan expects; 0 without a plan.
        queries_per_s: queries per second that began lately, whole or in its stages.
    """

    engine: EngineName
    state: DeploymentState
    wanted: tuple[Route, ...] = ()
    deployed: tuple[Route, ...] = ()
    reason: str = ""
    fault: str = ""
    predicted_per_s: float = 0.0
    queries_per_s: float = 0.0

    @property
    def where(self) -> str:
        """Where its stages are, and where they are wanted if that differs, for people."""
        deployed, wanted = (
            " and ".join(map(route_text, routes)) for routes in (self.deployed, self.wanted)
        )
        if not wanted or stages_of(self.wanted) == stages_of(self.deployed):
            return deployed
        return f"{deployed}; wanted: {wanted}" if deployed else f"wanted: {wanted}"

    @property
    def why(self) -> str:
        """Why it is so, or what is wrong."""
        return self.fault or self.reason


Orders: TypeAlias = PlanOrder | SplitOrder
_IDLE: Final = 0.1
"""Share of the queries of the engine with most that others count with at least: they may begin."""


def query_shares(rates: Sequence[float]) -> list[float]:
    """Return the shares of the queries to plan for; equal ones if no rate is known."""
    least = _IDLE * max(rates, default=0.0) or 1.0
    counted = [max(least, rate) for rate in rates]
    return [each / sum(counted) for each in counted]


def stages_of(routes: Iterable[Route]) -> Stages:
    """Return the workers of each stage of some routes."""
    found: defaultdict[Stage, set[str]] = defaultdict(set)
    for route in routes:
        for worker, first, last in route.legs:
            found[first, last].add(worker)
    return {stage: frozenset(workers) for stage, workers in found.items()}


def route_text(route: Route) -> str:
    """Return where a route runs its stages, for people."""
    return ", ".join(f"s{leg.first}-{leg.last} on {leg.worker}" for leg in route.legs)


def routes_of(stages: Mapping[Stage, Iterable[str]]) -> tuple[Route, ...]:
    """Return routes that some stages make up; stages may be left over.

    They have no worker in common as far as that is possible; further workers share the stages of
    other routes. It is the inverse of `stages_of`, but for which workers of the stages of a chain
    go together.
    """
    left = {stage: set(workers) for stage, workers in stages.items()}
    found: list[Route] = []
    while legs := _legs(left, 0, max((last for _, last in left), default=0)):
        found.append(Route(legs))
        for workers in left.values():
            workers.difference_update(leg.worker for leg in legs)
    for route in found.copy():
        for place, leg in enumerate(route.legs):
            for worker in sorted(left[leg[1:]]):
                legs = (*route.legs[:place], leg._replace(worker=worker), *route.legs[place + 1 :])
                found.append(Route(legs))
                for workers in left.values():
                    workers.discard(worker)
    return tuple(found)


def _legs(stages: Mapping[Stage, set[str]], first: int, end: int) -> tuple[Leg, ...]:
    """Return legs on different workers from a cut to the end; empty if there are none."""
    for stage in sorted(each for each in stages if each[0] == first and stages[each]):
        worker = min(stages[stage])
        leg = Leg(worker, *stage)
        if leg.last == end:
            return (leg,)
        others = {each: stages[each] - {worker} for each in stages}
        if behind := _legs(others, leg.last, end):
            return (leg, *behind)
    return ()
