"""Predicted times of engines on worker classes without a profile of them."""

from statistics import median

import pytest

from benchmarks.unknown_classes import CORES, shipped_times, shipped_works, without_class
from profiler.cutting.cuts import Cut
from profiler.cutting.process import ModelCuts
from profiler.dictionary.predicted import (
    RATE,
    SPEED_UP,
    KnownTime,
    PredictedTimes,
    Work,
    known_times,
    works_of,
)
from synergai.core.routes.fleet import FleetFile, FleetWorker
from synergai.core.routes.problem import Chain
from synergai.domain import Configuration, EngineName, WorkerClass
from tests.cores import new_entry

NET, OTHER = EngineName("net"), EngineName("other")
BOARD, CLOUD, EDGE = WorkerClass("board"), WorkerClass("cloud"), WorkerClass("edge")
WORK = Work(2e9, 1e8)


def times(*known: tuple[EngineName, WorkerClass, float], cores: float = 4) -> PredictedTimes:
    return PredictedTimes([KnownTime(name, of, cores, each) for name, of, each in known], {})


def test_class_is_slower_by_what_it_is_slower_for_other_engines() -> None:
    engines = [EngineName(f"e{number}") for number in range(10)]
    on_cloud = [(each, CLOUD, 0.02) for each in (*engines, NET)]
    slow = times(*on_cloud, *((each, BOARD, 0.1) for each in engines))
    assert slow.seconds(NET, BOARD, 4) == pytest.approx(0.1, rel=0.1)
    once = times(*on_cloud, (engines[0], BOARD, 0.1))
    assert 0.03 < once.seconds(NET, BOARD, 4) < 0.1


def test_class_without_any_profile_is_faster_with_more_cores() -> None:
    found = times((NET, CLOUD, 0.1))
    assert found.seconds(NET, BOARD, 1) > 2 * found.seconds(NET, BOARD, 4)
    assert found.seconds(NET, BOARD, 4) == pytest.approx(0.1, rel=0.2)


def test_engine_without_any_profile_is_predicted_by_its_work() -> None:
    known = [KnownTime(OTHER, CLOUD, 4, 0.1)]
    found = PredictedTimes(known, {OTHER: WORK, NET: Work(4e9, 1e8)})
    assert found.knows(NET)
    assert 0.15 < found.seconds(NET, CLOUD, 4) < 0.2
    assert not PredictedTimes(known, {NET: WORK}).knows(NET)
    assert not PredictedTimes(known, {}).knows(NET)


def test_time_of_which_nothing_is_known_is_that_of_the_work_at_a_rate() -> None:
    nothing = PredictedTimes([], {NET: WORK})
    assert nothing.seconds(NET, BOARD, 8) == pytest.approx(WORK.products / RATE / 8**SPEED_UP)
    assert not nothing.knows(NET)
    assert nothing.error(NET, BOARD) is None


def test_error_is_that_for_other_classes_of_which_as_little_is_known() -> None:
    known = [(NET, CLOUD, 0.1), (NET, EDGE, 0.1), (OTHER, CLOUD, 0.2), (OTHER, EDGE, 0.2)]
    assert times(*known).error(NET, BOARD) == pytest.approx(0.0, abs=0.1)
    unlike = [(name, of, each * (8 if of == EDGE else 1)) for name, of, each in known]
    unknown = times(*unlike).error(NET, BOARD)
    seen = times(*unlike, (OTHER, BOARD, 0.2)).error(NET, BOARD)
    assert unknown is not None
    assert seen is not None
    assert seen < unknown / 2
    assert times((NET, CLOUD, 0.1)).error(NET, BOARD) is None


def test_error_for_a_new_engine_is_that_for_the_others_on_its_class_each_left_out() -> None:
    known = [KnownTime(EngineName(f"e{n}"), BOARD, 4, n / 10) for n in (1, 2, 3)]
    known += [KnownTime(EngineName(f"e{n}"), CLOUD, 4, 50.0 / n) for n in (1, 2, 3)]
    works = {each.engine: Work(1e9 * 10 * each.seconds, 1e8) for each in known[:3]}
    of_board = PredictedTimes(known[:3], works | {NET: WORK}).error(NET, BOARD)
    assert of_board is not None
    assert of_board < 0.2
    found = PredictedTimes(known, works | {NET: WORK})
    assert (found.error(NET, BOARD) or 0.0) < (found.error(NET, EDGE) or 0.0) / 2


def test_known_times_are_the_fastest_profiles_and_what_agents_have_reported() -> None:
    speeds = {Configuration(1): 10.0, Configuration(8): 40.0}
    entries = [new_entry(NET, CLOUD, qps, threads) for threads, qps in speeds.items()]
    fleet = FleetFile(
        workers=(
            FleetWorker(id="a", worker_class=BOARD, query_s={OTHER: 0.3}),
            FleetWorker(id="b", worker_class=EDGE, cores=6),
        )
    )
    entries.append(new_entry(NET, EDGE, 20.0, Configuration(0)))
    assert known_times(entries, fleet) == [
        (NET, CLOUD, 8, 1 / 40),
        (NET, EDGE, 6, 1 / 20),
        (OTHER, BOARD, 1, 0.3),
    ]


def test_work_of_a_stage_is_its_share_of_the_products_and_its_weights() -> None:
    chain = Chain(
        engine=NET,
        sizes=(4, 4, 4, 4),
        weights_before=(0, 10, 60, 100),
        weights_after=(100, 90, 40, 0),
    )
    cuts = tuple(
        Cut(
            position=position,
            tensor=f"t{position}",
            datatype="FP32",
            shape=(1,),
            size_bytes=4,
            weights_before=chain.weights_before[position],
            weights_after=chain.weights_after[position],
            work=work,
            seam=True,
            exact=True,
        )
        for position, work in ((1, 0.25), (2, 0.75))
    )
    stages = [EngineName(f"net.s{ends}") for ends in ("0-1", "1-2", "2-3", "3-4")]
    assert works_of(chain, ModelCuts(cuts=cuts, products=8e9), stages) == {
        NET: (8e9, 100),
        "net.s0-1": (2e9, 10),
        "net.s1-2": (4e9, 50),
        "net.s2-3": (2e9, 40),
    }
    assert not works_of(chain, ModelCuts(cuts=cuts), stages)


@pytest.mark.parametrize("works", [{}, shipped_works()], ids=["times", "works"])
def test_shipped_times_of_a_class_left_out_are_within_a_third_at_the_median(
    works: dict[EngineName, Work],
) -> None:
    rows = [row for of in CORES for row in without_class(shipped_times(), works, of)]
    assert len(rows) == 36
    assert median(row.error for row in rows) <= 0.35
    shown = [row.shown for row in rows if row.shown is not None]
    assert len(shown) == 36
    assert abs(median(shown) - median(row.error for row in rows)) < 0.15
