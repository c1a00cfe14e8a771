"""Which version of an engine a request or job gets, and which route through it."""

import asyncio
import random

import pytest
from msgspec.structs import replace

from gateway.fleet.catalogue import Catalogue
from gateway.fleet.routes import Routes, asked_of_exit
from gateway.fleet.versions import VersionPolicy, Versions
from synergai.core import route as routes_module
from synergai.core.route import ExitRates, Route
from synergai.domain import Engine, EngineName, TensorSpec, WorkerId
from synergai.errors import (
    DeadlineExceeded,
    EngineUnusable,
    InvalidInput,
    NotFound,
    Unavailable,
    VersionNotFound,
)
from synergai.names import split_version, versioned
from synergai.wire.validation import DROP, STAY
from tests.engines import new_stage, new_whole, with_exit
from tests.unit.gateway.conftest import ENGINE
from tests.waiting import turns

W1, W2 = WorkerId("w1"), WorkerId("w2")
ECHO = "echo"


def of(version: str, fault: str = "", *, pending: bool = False) -> Engine:
    return replace(
        ENGINE, name=versioned(ECHO, version), version=version, fault=fault, pending=pending
    )


class Fleet:
    """Versions of ``echo`` on the worker `W1`."""

    def __init__(self, *versions: str) -> None:
        self.catalogue = Catalogue()
        self.stored: set[int] = set()
        self.versions = Versions(self.catalogue, stored=lambda _: self.stored)
        for version in versions:
            self.catalogue.update(W1, of(version))

    def chosen(self, version: str = "") -> str:
        return split_version(self.versions.resolve(ECHO, version))[1]


def test_request_without_a_version_gets_the_highest_by_number() -> None:
    assert Fleet("9", "1", "10").chosen() == "10"


@pytest.mark.parametrize("version", ["3", "0", "01", "two", "9" * 10_000, "2/3"])
def test_unknown_version_is_not_found_and_the_error_names_the_others(version: str) -> None:
    with pytest.raises(VersionNotFound, match="it has 1, 2") as caught:
        Fleet("1", "2").chosen(version)
    assert len(str(caught.value)) < 200


def test_new_highest_version_takes_over_once_it_is_usable() -> None:
    fleet = Fleet("1")
    assert fleet.chosen() == "1"
    fleet.catalogue.update(W1, of("2", "it is being inspected", pending=True))
    assert fleet.chosen() == "1"
    fleet.catalogue.update(W1, of("2", "the file is truncated"))
    assert fleet.chosen() == "1"
    fleet.catalogue.update(W1, of("2"))
    assert fleet.chosen() == "2"
    fleet.catalogue.withdraw(W1, EngineName("echo/2"))
    assert fleet.chosen() == "1"


def test_version_out_of_service_is_not_chosen_but_can_be_asked_for() -> None:
    fleet = Fleet("1", "2")
    assert fleet.chosen() == "2"
    fleet.catalogue.unload("echo/2")
    assert fleet.chosen() == "1"
    with pytest.raises(EngineUnusable, match="is unloaded"):
        fleet.versions.find(ECHO, "2")
    fleet.catalogue.load(EngineName("echo/2"))
    assert fleet.chosen() == "2"


def test_operation_on_a_name_is_on_all_versions() -> None:
    versions = Fleet("1", "2").versions
    assert list(versions.selected("echo")) == ["echo", "echo/2"]
    assert list(versions.selected("echo/1")) == ["echo"]
    assert list(versions.selected("echo/2")) == ["echo/2"]
    for unknown in ("echo/3", "other"):
        with pytest.raises(NotFound):
            versions.selected(unknown)


def test_version_above_those_of_the_store_is_not_chosen() -> None:
    fleet = Fleet("1", "2", "999")
    assert fleet.chosen() == "999"
    fleet.stored = {2}
    fleet.versions.on_stored_changed()
    assert fleet.chosen() == "2"
    assert fleet.chosen("999") == "999"
    fleet.catalogue.withdraw(W1, EngineName("echo/2"))
    assert fleet.chosen() == "1"  # which answered before it was pushed
    fleet.catalogue.withdraw(W1, EngineName(ECHO))
    assert fleet.chosen() == "2"
    with pytest.raises(Unavailable, match="no worker that serves"):
        fleet.versions.find(ECHO)


def test_versions_of_the_store_go_before_others() -> None:
    fleet = Fleet("1", "2", "3")
    fleet.stored = {1, 3}
    assert fleet.chosen() == "3"
    fleet.catalogue.unload("echo/3")
    assert fleet.chosen() == "1"


def test_engine_of_which_no_version_counts_says_what_to_do() -> None:
    fleet = Fleet("998", "999")
    fleet.stored = {1}
    with pytest.raises(Unavailable, match=r"\(998, 999\), ask for one by its number, or pin it"):
        fleet.chosen()
    assert list(fleet.versions.selected(ECHO)) == ["echo/998", "echo/999"]
    fleet.versions.set_policy(ECHO, VersionPolicy(base="998"))
    assert fleet.chosen() == "998"


def with_other_outputs(version: str) -> Engine:
    return replace(of(version), outputs=(TensorSpec("scores", "FP32", (-1,)),))


def test_new_version_with_other_tensors_waits_for_a_rollout() -> None:
    fleet = Fleet("1", "2")
    fleet.versions.find(ECHO)
    fleet.catalogue.update(W2, with_other_outputs("3"))
    assert fleet.chosen() == "2"
    policy = fleet.versions.policy(ECHO)
    assert (policy.base, policy.target, policy.share) == ("2", "3", 0.0)
    assert "version 3 has other inputs or outputs than version 2" in policy.reason
    fleet.versions.find(ECHO, "3")
    fleet.catalogue.update(W1, of("2"))
    assert fleet.chosen() == "2", "it was only asked for by its number"
    fleet.versions.set_policy(ECHO, VersionPolicy())
    assert fleet.chosen() == "3", "an operator has chosen the highest version"
    fleet.catalogue.update(W2, with_other_outputs("3"))
    assert fleet.chosen() == "3"


def test_version_with_other_tensors_replaces_one_that_clients_did_not_use_or_that_is_gone() -> None:
    fleet = Fleet("1")
    fleet.catalogue.update(W2, with_other_outputs("2"))
    assert fleet.chosen() == "2"
    fleet = Fleet("1")
    fleet.versions.find(ECHO)
    fleet.catalogue.update(W1, of("1", "it was removed from the worker"))
    fleet.catalogue.update(W2, with_other_outputs("2"))
    assert fleet.chosen() == "2"


def test_forgotten_versions_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.fleet.catalogue.MAX_ABSENT", 1)
    fleet = Fleet("1", "2")
    fleet.catalogue.remove_worker(W1)
    assert fleet.catalogue.forget_surplus() == ["echo/2"]
    with pytest.raises(VersionNotFound, match="it has 1"):
        fleet.chosen("2")


async def test_request_waits_for_a_version_that_was_found_meanwhile() -> None:
    fleet = Fleet()
    fleet.catalogue.update(W1, of("1", "it is being inspected", pending=True))
    waiting = asyncio.create_task(fleet.versions.wait_inspected(ECHO))
    await asyncio.sleep(0)
    fleet.catalogue.update(W1, of("2", "it is being inspected", pending=True))
    fleet.catalogue.update(W1, of("1", "the file is truncated"))
    await turns(3)
    assert not waiting.done()
    with pytest.raises(DeadlineExceeded):
        await fleet.versions.wait_inspected(ECHO, timeout_s=0.0)
    fleet.catalogue.update(W1, of("2"))
    await waiting


NET = EngineName("net")


def stage(first: int, last: int, accuracy: float = 0.0) -> Engine:
    """Return a stage, with an exit if that has an accuracy."""
    found = new_stage(first, last, digest=f"{first}-{last}")
    return with_exit(found, 0.8, accuracy) if accuracy else found


FIRST, SECOND, LAST = stage(0, 2, 0.95), stage(2, 5, 0.955), stage(5, 9)
WHOLE = new_whole()
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
