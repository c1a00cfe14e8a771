"""Plans and cuts for a gateway."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from profiler.dictionary.files import add_to_dictionary
from profiler.planning import live
from profiler.zoo import recipes as zoo
from synergai.core.routes.deployment import (
    EngineOrder,
    PlanOrder,
    SplitOrder,
    StageTime,
    WantedEngine,
)
from synergai.core.routes.fleet import FleetFile, FleetWorker
from synergai.core.routes.planner import ROUTE_PLANNERS, Search, found
from synergai.core.routes.problem import Leg, Route, RouteProblem
from synergai.domain import EngineName, WorkerClass
from synergai.errors import InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.names import stage_name, stage_positions
from synergai.profiles.dictionary import OBSERVED
from tests.cores import new_entry

ENGINE = EngineName("onnx_digits")
SMALL = 68.15
"""Megabytes, with which a worker can hold any stage of the engine but not all of it."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    zoo.build(ENGINE, folder, lambda _: None)
    return folder


def order(models: Path, *engines: EngineOrder, planner: str = "optimal") -> PlanOrder:
    workers = tuple(
        FleetWorker(id=name, worker_class=WorkerClass("board"), memory_mb=SMALL)
        for name in ("a", "b", "c")
    )
    return PlanOrder(
        models=str(models),
        dictionary=str(models / "dictionary.db"),
        fleet=FleetFile(workers=workers),
        engines=engines or (EngineOrder(name=ENGINE, workers=("a", "b")),),
        planner=planner,
    )


def wanted(models: Path, **fields: object) -> WantedEngine:
    engine = EngineOrder(name=ENGINE, workers=("a", "b"), **fields)  # type: ignore[arg-type]
    [found] = live.plan(order(models, engine))
    return found


def test_engine_without_profile_is_cut_by_its_work(models: Path) -> None:
    found = wanted(models)
    [route] = found.routes
    assert [leg.worker for leg in route.legs] == ["a", "b"]
    assert (route.legs[0].first, route.legs[-1].last) == (0, 11)
    assert found.reason.startswith("no worker has the memory for the whole engine; the times of")


def test_worker_that_was_slower_than_expected_gets_less_work(models: Path) -> None:
    [before] = wanted(models).routes
    first = before.legs[0]
    observed = (
        StageTime("a", first.first, first.last, 1.0),
        StageTime("b", first.last, 11, 0.001),
    )
    [behind] = wanted(models, observed=observed).routes
    work = {leg.worker: leg.last - leg.first for leg in behind.legs}
    assert work["a"] < first.last - first.first


def test_times_are_called_predicted_until_a_stage_has_run_on_the_class(models: Path) -> None:
    profiled = replace(order(models), dictionary=str(models / "profiled.db"))
    add_to_dictionary(Path(profiled.dictionary), [new_entry(ENGINE, "cloud", 10.0)])
    [found] = live.plan(profiled)
    assert "the times of class board are predicted from other profiles" in found.reason
    first = found.routes[0].legs[0]
    [engine] = profiled.engines
    engine = replace(engine, observed=(StageTime(*first, 0.01),))
    [found] = live.plan(replace(profiled, engines=(engine,)))
    assert "predicted" not in found.reason


def test_rate_of_a_stage_that_was_observed_in_service_tells_nothing(models: Path) -> None:
    profiled = replace(order(models), dictionary=str(models / "observed.db"))
    path = Path(profiled.dictionary)
    add_to_dictionary(path, [new_entry(ENGINE, "board", 10.0)])
    before = live.plan(profiled)
    first = before[0].routes[0].legs[0]
    stage = stage_name(ENGINE, first.first, first.last)
    add_to_dictionary(path, [replace(new_entry(stage, "board", 0.5), label=OBSERVED)])
    assert live.plan(profiled) == before


def test_present_routes_stay_while_no_others_save_enough(models: Path) -> None:
    [best] = wanted(models).routes
    assert wanted(models, present=(best,)).routes == (best,)
    swapped = Route(tuple(Leg("ba"[leg.worker == "b"], *leg[1:]) for leg in best.legs))
    assert wanted(models, present=(swapped,)).routes == (swapped,)
    elsewhere = Route((Leg("a", 0, 1000), Leg("b", 1000, 11)))
    assert wanted(models, present=(elsewhere,)).routes == (best,)


def test_engine_that_cannot_be_planned_says_why_and_leaves_the_others(models: Path) -> None:
    others = EngineOrder(name=EngineName("absent"), workers=("a",))
    lone = EngineOrder(name=ENGINE, workers=("a",))
    absent, alone = live.plan(order(models, others, lone))
    assert not absent.is_possible
    assert "has no engine 'absent'" in absent.reason
    assert not alone.is_possible
    assert "nothing fits: onnx_digits needs 68.2 MB whole" in alone.reason
    assert "raise --memory-mb of the agents" in alone.reason


def nowhere(problem: RouteProblem) -> Search:
    return found(Route((Leg("nobody", 0, 1), Leg("a", 1, problem.chain.end))))


def overlapping(problem: RouteProblem) -> Search:
    return found(Route((Leg("a", 0, 2), Leg("b", 1, problem.chain.end))))


@pytest.mark.parametrize(
    ("planner", "fault"),
    [(nowhere, "unknown worker 'nobody'"), (overlapping, "must cover it in order")],
)
def test_planner_that_answers_nonsense_has_failed(
    models: Path, monkeypatch: pytest.MonkeyPatch, planner: object, fault: str
) -> None:
    monkeypatch.setattr(ROUTE_PLANNERS, "get", lambda _: planner)
    with pytest.raises(InvalidInput, match=fault):
        live.plan(order(models, planner="own"))


def test_stages_of_an_order_are_made(models: Path) -> None:
    made = live.split(SplitOrder(models=str(models), name=ENGINE, cuts=(3, 6)))
    assert [stage_positions(stage) for stage in made] == [(0, 3), (3, 6), (6, 11)]
    tensors = [ModelDirectory(models).get(stage).tensors for stage in made]
    first, second, third = (each for each in tensors if each is not None)
    assert first.inputs[0].shape == (-1, 1, 8, 8)
    assert (first.outputs, second.outputs) == (second.inputs, third.inputs)
    assert live.split(SplitOrder(models=str(models), name=ENGINE, cuts=(3, 6))) == made
