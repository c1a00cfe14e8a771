"""Engines that run in stages."""

import asyncio

import pytest
from msgspec.structs import replace

from gateway.calls.requests.parameters import join_timings
from gateway.entry.access.caller import Caller, Grant, Role
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.stages import EngineInStages, complete_chain
from gateway.fleet.versions import Versions
from synergai.core.route import Route
from synergai.domain import REMOVED, Engine, WorkerId
from synergai.errors import (
    EnginePending,
    EngineUnloaded,
    EngineUnserved,
    EngineUnusable,
    SynergaiError,
    Unavailable,
)
from synergai.names import EngineName, stage_name, stage_positions
from synergai.oip.inference_pb2 import InferParameter
from tests.engines import new_stage
from tests.waiting import turns

NET = EngineName("net")
BOX = WorkerId("box")
OTHER = WorkerId("other")


def stage(first: int, last: int, *, end: int = 9, of: str = "a" * 64, version: str = "") -> Engine:
    return new_stage(
        first,
        last,
        name=stage_name(f"net/{version}" if version else "net", first, last),
        version=version or "1",
        stage_of=of,
        stage_end=end,
        preprocess="" if first else "mobilenet",
        postprocess="classes" if last == end else "",
        samples=0 if first else 5,
    )


def places(stages: tuple[Engine, ...]) -> list[tuple[int, int]]:
    return [stage_positions(each.name) for each in stages]


def test_stages_that_no_others_lead_to_are_no_candidates() -> None:
    catalogue = Catalogue()
    for each in (stage(0, 4), stage(4, 9), stage(3, 6), stage(6, 9)):
        catalogue.update(BOX, each)
    assert list(catalogue.stages.candidates(NET)) == [(0, 4), (4, 9)]


@pytest.mark.parametrize(
    ("stages", "chain"),
    [
        ([stage(0, 4), stage(4, 9)], [(0, 4), (4, 9)]),
        ([stage(4, 9), stage(0, 4), stage(0, 2), stage(2, 4)], [(0, 4), (4, 9)]),
        ([stage(0, 2), stage(2, 5), stage(5, 9)], [(0, 2), (2, 5), (5, 9)]),
        ([stage(0, 4)], []),
        ([stage(0, 4), stage(5, 9)], []),
        ([stage(0, 4), stage(4, 9, of="b" * 64)], []),
        ([stage(0, 4), stage(4, 9, end=12)], []),
        ([stage(0, 4), stage(4, 9), stage(0, 9, of="b" * 64)], [(0, 9)]),
        ([stage(4, 4), stage(0, 4), stage(4, 12)], []),
        ([], []),
    ],
)
def test_chain_is_the_fewest_stages_of_one_model_from_inputs_to_outputs(
    stages: list[Engine], chain: list[tuple[int, int]]
) -> None:
    assert places(complete_chain(stages)) == chain


def test_whole_engine_has_the_inputs_of_the_first_and_the_outputs_of_the_last_stage() -> None:
    whole = Route((stage(0, 4), stage(4, 9))).whole
    assert (whole.name, whole.digest) == ("net", "a" * 64)
    assert [each.name for each in (*whole.inputs, *whole.outputs)] == ["t0", "t9"]
    assert (whole.preprocess, whole.postprocess) == ("mobilenet", "classes")
    assert not whole.stage_of


def test_engine_is_in_stages_while_no_worker_has_it_whole_and_all_stages_are_there() -> None:
    catalogue = Catalogue()
    versions = Versions(catalogue)
    catalogue.update(BOX, stage(0, 4))
    with pytest.raises(Unavailable, match=r"lack stages of engine 'net': they have net\.s0-4$"):
        versions.find("net")
    catalogue.update(OTHER, stage(4, 9))
    with pytest.raises(EngineInStages) as raised:
        versions.find("net")
    assert places(raised.value.stages) == [(0, 4), (4, 9)]
    assert versions.in_service("net") == ["1"]
    whole = replace(Route((stage(0, 4), stage(4, 9))).whole, name=EngineName("net"))
    catalogue.update(BOX, whole)
    assert versions.find("net") == whole
    catalogue.withdraw(BOX, whole.name)
    assert versions.in_service("net") == ["1"]
    catalogue.remove_worker(OTHER)
    assert versions.in_service("net") == []
    with pytest.raises(Unavailable):
        versions.find("net")


def test_stage_that_was_removed_is_unavailable_and_a_faulty_one_unusable() -> None:
    catalogue = Catalogue()
    for fault, error in ((REMOVED, Unavailable), ("it is broken", EngineUnusable)):
        catalogue.update(WorkerId("a"), replace(stage(4, 9), fault=fault))
        with pytest.raises(error):
            catalogue.find(stage(4, 9).name)


@pytest.mark.parametrize(("pending", "otherwise"), [(False, EngineUnusable), (True, EnginePending)])
def test_engine_that_no_worker_can_run_whole_is_in_stages_of_the_stored_model(
    pending: bool,
    otherwise: type[SynergaiError],
) -> None:
    whole = replace(Route((stage(0, 4), stage(4, 9))).whole, name=EngineName("net"))
    faulty = replace(whole, fault="it is too large", pending=pending)
    for digest, error in (("a" * 64, EngineInStages), ("b" * 64, otherwise)):
        catalogue = Catalogue(model={NET: digest}.__getitem__)
        for each in (stage(0, 4), stage(4, 9), faulty):
            catalogue.update(BOX, each)
        with pytest.raises(error) as raised:
            catalogue.find("net")
        assert type(raised.value) is error
        assert bool(catalogue.open_chains(EngineName("net"))) == (error is EngineInStages)


def test_queries_begin_in_no_stage_that_is_retired() -> None:
    catalogue = Catalogue()
    changed: list[EngineName] = []
    catalogue.on_service_changed = changed.append
    for each in (stage(0, 4), stage(4, 9), stage(0, 6), stage(6, 9)):
        catalogue.update(BOX, each)
    changed.clear()
    retired = {stage(0, 4).name, stage(4, 9).name}
    catalogue.retire(retired)
    assert set(changed) == retired
    assert [places(each) for each in catalogue.open_chains(NET)] == [[(0, 6), (6, 9)]]
    assert catalogue.serves(stage(4, 9).name)
    catalogue.retire(set())
    assert len(catalogue.open_chains(NET)) == 2


def test_engine_whose_stages_are_known_is_unavailable_until_they_are_back() -> None:
    versions = Versions(Catalogue(known=[stage(0, 4).name, stage(4, 9).name]))
    with pytest.raises(Unavailable):
        versions.find("net")


async def test_requests_wait_for_stages_that_workers_lack_if_they_wait_for_workers() -> None:
    catalogue = Catalogue(worker_wait_s=60.0)
    whole = replace(stage(0, 9), name=NET, stage_of="", stage_end=0, fault="it is too large")
    catalogue.update(BOX, whole)
    catalogue.update(BOX, stage(0, 4))
    with pytest.raises(EngineUnserved):
        catalogue.find_usable(NET)
    catalogue.withdraw(BOX, NET)
    with pytest.raises(EngineUnserved):
        catalogue.find_usable(NET)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(catalogue.wait_inspected(NET))
        await turns()
        assert not waiting.done()
        catalogue.update(OTHER, stage(4, 9))
    with pytest.raises(EngineInStages):
        catalogue.find_usable(NET)


def test_highest_version_may_be_in_stages() -> None:
    catalogue = Catalogue()
    versions = Versions(catalogue)
    whole = replace(Route((stage(0, 4), stage(4, 9))).whole, name=EngineName("net"))
    catalogue.update(BOX, whole)
    for each in (stage(0, 4, version="2"), stage(4, 9, version="2")):
        catalogue.update(BOX, each)
    with pytest.raises(EngineInStages, match="'net/2' runs in 2 stages"):
        versions.find("net")
    assert versions.find("net", "1") == whole


def test_unloaded_stage_is_not_used() -> None:
    catalogue = Catalogue()
    parts = [stage(0, 4), stage(4, 9)]
    for each in parts:
        catalogue.update(BOX, each)
    assert catalogue.is_staged(EngineName("net"))
    catalogue.unload(parts[0].name)
    assert not catalogue.is_staged(EngineName("net"))
    catalogue.load(parts[0].name)
    assert catalogue.is_staged(EngineName("net"))


def test_unloaded_engine_does_not_run_in_stages() -> None:
    catalogue = Catalogue()
    for each in (stage(0, 4), stage(4, 9)):
        catalogue.update(BOX, each)
    catalogue.unload("net")
    assert not catalogue.is_staged(EngineName("net"))
    with pytest.raises(EngineUnloaded):
        catalogue.find("net")
    catalogue.load(EngineName("net"))
    assert catalogue.is_staged(EngineName("net"))


def test_whoever_may_use_an_engine_may_use_its_stages() -> None:
    caller = Caller("a", "", (Grant(to=("a",), roles=frozenset({Role.INFER}), engines=("net",)),))
    assert caller.may(Role.INFER, engine=stage(0, 4, version="2").name)
    assert not caller.may(Role.INFER, engine="other.s0-4")


def test_timings_of_stages_are_added_and_their_workers_listed() -> None:
    def timings(us: int, worker: str) -> dict[str, InferParameter]:
        return {
            "synergai_queue_us": InferParameter(int64_param=us),
            "synergai_worker": InferParameter(string_param=worker),
            "other": InferParameter(int64_param=1),
        }

    joined = join_timings([timings(3, "a"), timings(4, "b")])
    assert joined == {
        "synergai_queue_us": InferParameter(int64_param=7),
        "synergai_worker": InferParameter(string_param="a b"),
    }
