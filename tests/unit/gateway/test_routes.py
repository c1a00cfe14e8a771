"""The route of a query through its engine, with early exits and without."""

import random

import pytest
from msgspec.structs import replace

from gateway.fleet.catalogue import Catalogue
from gateway.fleet.routes import Routes, asked_of_exit
from synergai.core import route as routes_module
from synergai.core.route import ExitRates, Route
from synergai.domain import Engine, EngineName, Exit, TensorSpec, WorkerId
from synergai.errors import InvalidInput
from synergai.wire.validation import DROP, STAY
from tests.engines import new_stage

NET = EngineName("net")
DIGEST = "a" * 64
ANSWER = TensorSpec("t9", "FP32", (1, 4))


def stage(first: int, last: int, accuracy: float = 0.0, rate: float = 0.8) -> Engine:
    """Return a stage, with an exit if that has an accuracy."""
    exit_ = Exit(output="t9", threshold=0.9, rate=rate, accuracy=accuracy, whole_accuracy=0.96)
    tensor = TensorSpec(f"t{last}", "FP32", (1, 4))
    return new_stage(
        first,
        last,
        outputs=(ANSWER, tensor) if accuracy else (tensor,),
        digest=f"{first}-{last}",
        stage_of=DIGEST,
        exit=exit_ if accuracy else None,
    )


FIRST, SECOND, LAST = stage(0, 2, 0.95), stage(2, 5, 0.955), stage(5, 9)
WHOLE = replace(stage(0, 9), name=NET, stage_of="", stage_end=0, digest=DIGEST)
SECONDS = {stage(0, 5).name: 3.0, FIRST.name: 1.0, SECOND.name: 2.0, LAST.name: 6.0, NET: 9.0}


def find(
    *engines: Engine, floor: float = 0.0, prefers_stages: bool = False, **seconds: float
) -> list[str] | None:
    catalogue = Catalogue()
    catalogue.stages.preferred = {NET} if prefers_stages else set()
    for number, engine in enumerate(engines):
        catalogue.update(WorkerId(f"worker-{number}"), engine)
    times = SECONDS | {EngineName(name): value for name, value in seconds.items()}
    routes = Routes(catalogue)
    route = routes.find(NET, floor, lambda engine: times[engine.name], routes.rates.rate)
    return route and [each.name for each in route.engines]  # type: ignore[return-value]


def test_behind_an_exit_a_query_goes_on_or_begins_again_whichever_is_faster() -> None:
    assert find(FIRST, SECOND, LAST) == [FIRST.name, SECOND.name, LAST.name]
    assert find(FIRST, SECOND, LAST, WHOLE) == [FIRST.name, SECOND.name, LAST.name]
    assert find(FIRST, SECOND, LAST, WHOLE, net=1.2) is None
    assert find(FIRST, SECOND, LAST, WHOLE, net=1.5) == [FIRST.name, NET]
    assert find(FIRST, SECOND, LAST, WHOLE, net=4.0) == [FIRST.name, SECOND.name, NET]
    assert find(FIRST, SECOND, WHOLE) == [FIRST.name, SECOND.name, NET]
    assert find(FIRST, WHOLE) == [FIRST.name, NET]


def test_an_engine_whose_stages_have_no_exits_runs_whole() -> None:
    assert find(stage(0, 5), LAST, WHOLE, net=100.0) is None
    assert find(WHOLE) is None
    assert find(stage(0, 5), LAST) == ["net.s0-5", "net.s5-9"]


def test_engine_that_was_cut_because_that_pays_runs_in_its_stages_beside_the_whole_one() -> None:
    assert find(stage(0, 5), LAST, WHOLE, prefers_stages=True) == ["net.s0-5", "net.s5-9"]
    assert find(LAST, WHOLE, prefers_stages=True) is None
    assert find(stage(0, 5), LAST, WHOLE, floor=0.9, prefers_stages=True) is None


def test_engine_whose_stages_have_all_left_has_no_route() -> None:
    catalogue = Catalogue()
    for each in (stage(0, 5), LAST):
        catalogue.update(WorkerId("worker"), each)
    catalogue.remove_worker(WorkerId("worker"))
    assert Routes(catalogue).find(NET, 0.0, lambda _: 1.0, lambda _: 0.0) is None


def test_exits_of_another_model_are_left_out() -> None:
    assert find(replace(FIRST, stage_of="b" * 64), WHOLE) is None


def test_queries_leave_only_where_their_floor_is_held() -> None:
    assert find(FIRST, SECOND, WHOLE, floor=0.95) == [FIRST.name, SECOND.name, NET]
    assert find(FIRST, SECOND, WHOLE, floor=0.952) is None
    route = Route((FIRST, SECOND, LAST), 0.952)
    assert [route.may_leave(place) for place in range(3)] == [False, True, False]
    assert [asked_of_exit(route, place) for place in range(3)] == [STAY, "", ""]
    assert find(FIRST, SECOND, LAST, floor=0.96) == [FIRST.name, SECOND.name, LAST.name]
    with pytest.raises(InvalidInput, match=r"accuracy of 0\.97: in stages, it has 0\.96"):
        find(FIRST, SECOND, LAST, floor=0.97)
    with pytest.raises(InvalidInput, match=r"a floor of 0\.9 cannot be guaranteed"):
        find(stage(0, 5), LAST, floor=0.9)


def test_the_tensor_is_not_asked_for_where_the_query_begins_again() -> None:
    route = Route((FIRST, SECOND, WHOLE))
    assert [asked_of_exit(route, place) for place in range(3)] == ["", DROP, ""]
    assert [route.begins_again(place) for place in range(3)] == [False, False, True]
    assert route.whole == WHOLE
    assert Route((FIRST, SECOND, LAST)).whole.name == NET


def test_later_engines_count_for_the_queries_that_get_there() -> None:
    route = Route((FIRST, SECOND, LAST))
    times = SECONDS.__getitem__
    seconds = route.seconds(lambda engine: times(engine.name), lambda _: 0.75)
    assert seconds == pytest.approx(1 + 0.25 * 2 + 0.25 * 0.25 * 6)
    rest = route.seconds(lambda engine: times(engine.name), lambda _: 0.75, 1)
    assert rest == pytest.approx(2 + 0.25 * 6)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_the_rate_of_an_exit_is_learned_within_a_hundred_queries(share: float) -> None:
    rates, draw = ExitRates(), random.Random(1)
    assert rates.rate(FIRST) == pytest.approx(0.8)
    left = [draw.random() < share for _ in range(100)]
    for each in left:
        rates.observe(FIRST, left=each)
    assert rates.rate(FIRST) == pytest.approx(sum(left) / 100, abs=0.1)
    assert rates.rate(replace(FIRST, digest="other")) == pytest.approx(0.8)


def test_rates_of_exits_that_were_seen_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "MOST_EXITS", 2)
    rates = ExitRates()
    first, second, third = (replace(FIRST, digest=str(version)) for version in range(3))
    for each in (first, second, first, third):
        rates.observe(each, left=False)
    learned = [rates.rate(each) < 0.8 for each in (first, second, third)]
    assert learned == [True, False, True]
