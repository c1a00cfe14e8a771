"""What queries of stages have taken, and how many there were."""

import pytest

from gateway.deployment.stage_times import RATE_WINDOWS, WINDOW_S, StageTimes
from gateway.fleet.worker import ConnectedWorker
from synergai.core.routes.deployment import StageTime
from synergai.domain import EngineName
from tests.unit.gateway.conftest import make_worker
from tests.unit.gateway.deployment_world import NET


def run(worker: ConnectedWorker, name: str, seconds: float, queries: int) -> None:
    before = worker.computed.get(EngineName(name), (0.0, 0))
    worker.computed[EngineName(name)] = before[0] + seconds * queries, before[1] + queries


def test_times_of_stages_are_those_of_the_last_queries() -> None:
    worker, times = make_worker("a"), StageTimes()
    run(worker, "net.s0-4", 9.0, 50)
    times.observe([worker], {NET}, 0.0)
    run(worker, "net.s0-4", 0.1, 50)
    run(worker, "net.s4-9", 0.1, 50)
    run(worker, "other.s0-9", 0.1, 50)
    times.observe([worker], {NET}, WINDOW_S / 2)
    assert times.of(NET) == ()
    times.observe([worker], {NET}, WINDOW_S)
    run(worker, "net.s0-4", 0.12, 2)
    times.observe([worker], {NET}, 2 * WINDOW_S)
    assert [each.seconds for each in times.of(NET)] == pytest.approx([0.1])
    run(worker, "net.s0-4", 0.12, 2)
    run(worker, "net", 0.3, 20)
    times.observe([worker], {NET}, 3 * WINDOW_S)
    [observed] = times.of(NET)
    assert observed.seconds == pytest.approx(0.12)
    run(worker, "net", 0.3, 20)
    times.observe([worker], {NET}, 4 * WINDOW_S)
    assert times.of(NET) == (observed,)
    assert times.of(EngineName("other")) == ()


def test_time_that_has_changed_counts_once_other_queries_have_confirmed_it() -> None:
    worker, times, found = make_worker("a"), StageTimes(), []
    run(worker, "net.s0-4", 0.1, 1)
    for window, seconds in enumerate((0.1, 0.1, 0.2, 0.3, 0.3, 0.1, 0.3)):
        times.observe([worker], {NET}, window * WINDOW_S)
        found += [each.seconds for each in times.of(NET)]
        run(worker, "net.s0-4", seconds, 3)
    assert found == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.3, 0.3])


def test_time_in_which_a_worker_ran_another_engine_as_well_does_not_count() -> None:
    worker, times = make_worker("a"), StageTimes()
    for window in range(6):
        run(worker, "net.s0-4", 0.2, 5)
        run(worker, "other.s0-4", 0.1, 10 if window < 3 else 0)
        times.observe([worker], {NET, EngineName("other")}, window * WINDOW_S)
        if window > 1:
            [observed] = times.of(NET)
            assert observed.seconds == pytest.approx(0.1 if window < 4 else 0.2)


def test_engines_that_share_a_worker_tell_how_fast_it_is_for_what_was_planned() -> None:
    worker, times = make_worker("a"), StageTimes()
    times.set_planned(NET, [StageTime("a", 0, 4, 0.02)])
    times.set_planned(EngineName("other"), [StageTime("a", 0, 4, 0.06)])
    for window in range(4):
        # Each is busy for less than half of the time, and waits for the other one.
        run(worker, "net.s0-4", 0.05, 10)
        run(worker, "other.s0-4", 0.046, 10)
        times.observe([worker], {NET, EngineName("other")}, window * WINDOW_S)
    assert [each.seconds for each in times.of(NET)] == pytest.approx([0.02], rel=0.01)


def test_queries_tell_nothing_while_stages_are_deployed() -> None:
    worker, times = make_worker("a"), StageTimes()
    for window in range(8):
        run(worker, "net.s0-4", 0.9 if window < 4 else 0.1, 5)
        times.observe([worker], {NET}, window * WINDOW_S, is_changing=window < 5)
        assert bool(times.of(NET)) == (window > 4)
    assert [each.seconds for each in times.of(NET)] == pytest.approx([0.1])


def test_stage_that_a_worker_runs_no_longer_does_not_tell_how_fast_it_is() -> None:
    worker, times = make_worker("a"), StageTimes()
    for window in range(4 + RATE_WINDOWS):
        run(worker, "net.s0-4" if window < 2 else "net.s4-9", 0.1, 10)
        times.observe([worker], {NET}, window * WINDOW_S)
        if window == 2:
            run(worker, "net.s4-9", 0.1, 10)
    assert times.of(NET) == (StageTime("a", 4, 9, times.of(NET)[0].seconds),)


def test_rates_are_means_over_some_windows() -> None:
    worker, times = make_worker("a"), StageTimes()
    for name in ("net.s0-4", "net.s4-9", "net"):
        run(worker, name, 0.0, 0)
    times.observe([worker], {NET}, 0.0)
    run(worker, "net.s0-4", 0.01, 10)
    run(worker, "net.s4-9", 0.01, 10)
    run(worker, "net", 0.02, 20)
    times.observe([worker], {NET}, WINDOW_S)
    times.observe([worker], {NET}, 2 * WINDOW_S)
    assert times.queries_per_s(NET) == pytest.approx(30 / (2 * WINDOW_S))
    assert times.expected_per_s(EngineName("net/2")) == times.queries_per_s(NET)
    for window in range(3, 3 + RATE_WINDOWS):
        times.observe([worker], {NET}, window * WINDOW_S)
    assert times.queries_per_s(NET) == 0


@pytest.mark.parametrize(
    ("planned_s", "found_s"), [(0.16, 0.1), (0.12, 0.12), (0.08, 0.08), (0.05, 0.1)]
)
def test_engines_that_share_a_worker_take_what_was_planned_unless_they_differ_much(
    planned_s: float, found_s: float
) -> None:
    worker, times, other = make_worker("a"), StageTimes(), EngineName("other")
    for engine in (NET, other):
        times.set_planned(engine, [StageTime("a", 0, 4, planned_s)])
    for window in range(5):
        times.observe([worker], {NET, other}, window * WINDOW_S)
        for engine in (NET, other):  # each one waits for the other
            run(worker, f"{engine}.s0-4", 0.2, 5)
    [observed] = times.of(NET)
    assert observed.seconds == pytest.approx(found_s)


def test_time_is_as_planned_unless_it_differs_by_a_share_of_the_longest_one() -> None:
    one, two, times = make_worker("a"), make_worker("b"), StageTimes()
    times.set_planned(NET, [StageTime("a", 0, 4, 0.1), StageTime("b", 4, 9, 0.01)])
    found = []
    for window, seconds in enumerate([0.03] * 4 + [0.04] * 4):
        times.observe([one, two], {NET}, window * WINDOW_S)
        run(one, "net.s0-4", 0.11, 5)
        run(two, "net.s4-9", seconds, 5)
        found.append([each.worker for each in times.unplanned(NET)])
    assert len(times.of(NET)) == 2
    assert found[4] == []
    assert found[-1] == ["b"]


def test_requests_that_wait_are_expected_as_well() -> None:
    worker, times, other = make_worker("a"), StageTimes(), EngineName("other")
    for window in range(3):
        times.observe(
            [worker], {NET, other}, window * WINDOW_S, {NET: 5 * window, other: 20 * window}
        )
        run(worker, "net.s0-4", 0.01, 5)
        run(worker, "other.s0-4", 0.01, 1 if window else 5)
    assert times.queries_per_s(other) == pytest.approx(1 / WINDOW_S)
    assert times.expected_per_s(other) == pytest.approx(20 / WINDOW_S)
    assert times.expected_per_s(NET) == pytest.approx(5 / WINDOW_S)
    assert times.expected(other) == pytest.approx(40)
