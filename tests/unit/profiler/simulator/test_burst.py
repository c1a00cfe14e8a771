"""Tests of the burst of one engine among many."""

import pytest

from profiler.simulator.pipelines.burst import (
    ENGINES,
    IN_TIME,
    LOAD_S,
    PLACEMENTS,
    BurstCase,
    BurstResult,
    Visit,
    run,
    share_in_time,
    tables,
)
from profiler.simulator.pipelines.measured_chains import WORKERS


@pytest.fixture(scope="module")
def case() -> BurstCase:
    return BurstCase()


def test_worker_runs_one_query_at_a_time_in_the_order_of_arrival() -> None:
    def through_both(engine: int, _now: float, _free: object) -> list[Visit]:
        return [Visit(engine, 2.0, 0.5), Visit(1 - engine, 1.0, 0.25)]

    # The second query takes worker 1 until 2.1; the first waits there for nothing, from 2.5 on.
    assert run([(0.0, 0), (0.1, 1)], through_both) == pytest.approx([3.75, 3.85])
    assert run([(0.0, 0), (1.0, 0)], through_both) == pytest.approx([3.75, 5.75])


def test_whole_engines_have_at_least_the_memory_of_the_stages(case: BurstCase) -> None:
    sessions = case.replicas()
    assert [len(engines) for engines in sessions] == [case.sessions] * WORKERS
    assert all(len(set(engines)) == len(engines) for engines in sessions)
    counts = [sum(engine in engines for engines in sessions) for engine in range(ENGINES)]
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1


def test_query_waits_for_a_session_that_is_resident(case: BurstCase) -> None:
    [visit] = case.whole()(0, 0.0, [9.0] * WORKERS)
    assert 0 in case.replicas()[visit.worker]
    assert visit.seconds == case.whole_s


def test_session_is_loaded_where_the_query_ends_earlier_and_then_stays(case: BurstCase) -> None:
    resident = [0 in engines for engines in case.replicas()]
    free = [9.0 if holds else 0.0 for holds in resident]
    dispatch = case.loading()
    [first] = dispatch(0, 0.0, free)
    assert not resident[first.worker]
    assert first.seconds == LOAD_S + case.whole_s
    free[first.worker] = first.seconds
    assert dispatch(0, first.seconds, free) == [first._replace(seconds=case.whole_s)]


def test_stages_of_all_engines_are_on_all_workers(case: BurstCase) -> None:
    visits = [case.stages()(engine, 0.0, []) for engine in range(ENGINES)]
    for number in range(len(case.legs)):
        counts = [
            sum(each[number].worker == worker for each in visits) for worker in range(WORKERS)
        ]
        assert counts == [ENGINES / WORKERS] * WORKERS


def test_fewer_queries_end_in_time_at_higher_rates(case: BurstCase) -> None:
    for dispatch in PLACEMENTS.values():
        low, high = (share_in_time(case, dispatch(case), 0, rate, seed=0) for rate in (1, 200))
        assert low >= IN_TIME > high


def test_stages_serve_a_burst_that_whole_engines_do_not(case: BurstCase) -> None:
    shares = {
        name: [share_in_time(case, dispatch(case), each, 45, seed=0) for each in range(ENGINES)]
        for name, dispatch in PLACEMENTS.items()
    }
    assert min(shares["stages"]) >= IN_TIME > max(shares["whole"] + shares["loading"])


def test_rows_have_the_mean_and_the_lowest_rate_of_engines() -> None:
    results = [
        BurstResult(placement=placement, engine=engine, seed=0, rate=2.0 * (engine + 1))
        for placement in PLACEMENTS
        for engine in range(2)
    ]
    [(_, rows)] = tables(results)
    assert rows[0] == ["whole", "3.0", "2.0"]
