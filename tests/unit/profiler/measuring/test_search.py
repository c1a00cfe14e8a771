"""Searches on simulated fleets, and what strategies may rely on."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.baselines import STRATEGIES
from benchmarks.search import Method, hypervolume, judge, run_search
from benchmarks.simulated_fleets import (
    PLAN,
    Measurements,
    SimulatedFleet,
    reconstructed_fleet,
    synthetic_fleet,
)
from benchmarks.surfaces import FAMILIES
from benchmarks.surfaces import draw as draw_surface
from profiler.measuring.search.belief import QPS, SharedProcess, expected_log_qps
from profiler.measuring.search.expected_gain import expected_improvement, improvement
from profiler.measuring.search.space import Knobs, Point, SearchSpace, Trial, TrialResult
from profiler.measuring.search.state import DEFAULT_BUDGET, Search, Strategy
from profiler.reports.characterisation.fleet_profile import front
from synergai.domain import Configuration, EngineName
from synergai.errors import InvalidInput

ALL = ("exhaustive", "gp", "halving", "hill-climbing", "random")
FAST = EngineName("fast")
SLOW = EngineName("slow")
X86 = ("x86", "")
GP = Method("gp", {"objective": "front"})


def make_strategy(name: str = "gp") -> Strategy:
    return STRATEGIES.create(name, {})


def make_space(
    engines: tuple[EngineName, ...] = (FAST, SLOW),
    threads: tuple[int, ...] = (1, 2, 4, 8),
    cores: int = 8,
) -> SearchSpace:
    return SearchSpace(
        [
            Point(engine, X86, Configuration(count), Knobs(count, cores))
            for engine in engines
            for count in threads
        ]
    )


def make_result(qps: float, watts: float = 10.0) -> TrialResult:
    return TrialResult(qps, watts, setup_s=1.0, seconds=4.0)


def true_qps(point: Point) -> float:
    level = 100.0 if point.engine == FAST else 10.0
    return level * math.exp(expected_log_qps(point.knobs))


def run(
    search: Search,
    watts: float = 10.0,
    qps: Callable[[Point], float | None] = true_qps,
) -> list[int]:
    """Run a search to its end; return the measured points in order.

    Args:
        qps: what a measurement finds, by default on a smooth space; None for one that fails.
    """
    while (trial := search.next()) is not None:
        found = qps(search.state.space.points[trial.point])
        if found is None:
            search.state.fail(trial, 1.0)
        else:
            search.state.tell(trial, make_result(found, watts))
    return search.state.new


def best_threads(search: Search) -> int:
    best = search.state.best((FAST, X86))
    assert best is not None
    return search.state.space.points[best].knobs.threads


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return reconstructed_fleet()


def test_search_finds_the_best_configurations_in_a_quarter_of_the_time(
    fleet: SimulatedFleet,
) -> None:
    outcome = judge(fleet, run_search(fleet, GP, seed=3))
    assert outcome.share <= 0.25
    assert outcome.regrets.mean() <= 0.005
    assert np.mean(outcome.regrets <= 0.05) >= 0.98
    assert outcome.front >= 0.95
    # As many predictions are within two of their errors as should be.
    assert np.mean(np.abs(outcome.errors) <= 2 * outcome.stated) >= 0.95


def test_a_row_that_collapses_with_all_cores_is_found_out() -> None:
    space = make_space((FAST,), (1, 2, 3, 4, 6, 8, 12, 16), cores=16)
    search = Search(space, make_strategy(), PLAN, math.inf)
    run(search, qps=lambda point: true_qps(point) * (0.2 if point.knobs.threads == 16 else 1))
    assert best_threads(search) == 12


def test_new_engine_starts_from_what_is_known_of_others(fleet: SimulatedFleet) -> None:
    new = fleet.space.points[0].engine
    rows = [row for row in fleet.space.rows if row[0] == new]
    measurements = Measurements(fleet, 9)
    known = {
        index: measurements.measure(Trial(index), switches=False)
        for index, point in enumerate(fleet.space.points)
        if point.engine != new and index % 3 == 0
    }
    search = run_search(fleet, Method("gp", {"objective": "qps"}), 9, known, rows)
    outcome = judge(fleet, search, rows)
    assert {fleet.space.points[point].engine for point in search.state.new} == {new}
    assert outcome.share <= 0.25
    assert outcome.regrets.mean() <= 0.01


@pytest.mark.parametrize("name", ALL)
def test_strategy_measures_within_the_budget_and_nothing_twice_without_reason(name: str) -> None:
    fleet = synthetic_fleet(100, slow_setup=False)
    fleet_part = [point for point in fleet.space.points if point.engine in {"e0", "e1"}]
    search = Search(SearchSpace(fleet_part), make_strategy(name), PLAN, 0.4)
    measurements = Measurements(fleet, 1)
    numbers = [fleet.space.points.index(point) for point in fleet_part]
    while (trial := search.next()) is not None:
        of_fleet = trial._replace(point=numbers[trial.point])
        search.state.tell(trial, measurements.measure(of_fleet, switches=False))
    state = search.state
    assert 0 < state.spent_s <= 0.45 * state.costs.exhaustive_s(range(len(fleet_part)))
    assert all(len(results) <= 3 for results in state.results.values())


@pytest.mark.parametrize("name", ["gp", "hill-climbing"])
def test_default_budget_covers_each_row_of_a_small_space(name: str) -> None:
    engines = tuple(EngineName(f"e{number}") for number in range(4))
    space = make_space(engines, (1,))
    assert len(run(Search(space, make_strategy(name), PLAN, DEFAULT_BUDGET))) < len(engines)
    measured = run(Search(space, make_strategy(name), PLAN))
    assert {space.points[point].engine for point in measured} == set(engines)


def test_default_budget_of_a_large_space_is_the_share_alone() -> None:
    threads = tuple(range(1, 33))
    [given, default] = [
        Search(make_space(threads=threads), make_strategy(), PLAN, budget)
        for budget in (DEFAULT_BUDGET, None)
    ]
    assert default.budget_s() == given.budget_s()
    assert run(default) == run(given)


def test_third_failure_of_a_row_that_works_counts_as_time() -> None:
    search = Search(make_space((FAST,)), make_strategy(), PLAN, math.inf)
    search.state.tell(Trial(0), make_result(10.0))
    spent = []
    for point in (1, 2, 3):
        search.state.fail(Trial(point), 5.0)
        spent.append(search.state.spent_s)
    assert spent == [4.0, 4.0, 9.0]


@pytest.mark.parametrize("name", ALL)
def test_space_of_one_point_is_measured_and_then_the_search_ends(name: str) -> None:
    search = Search(make_space((FAST,), (1,)), make_strategy(name), PLAN, math.inf)
    assert set(run(search)) == {0}
    assert search.next() is None


@pytest.mark.parametrize("name", ALL)
def test_search_without_time_measures_nothing(name: str) -> None:
    search = Search(make_space(), make_strategy(name), PLAN, 0.0)
    assert search.next() is None
    assert search.predictions() == {}


@pytest.mark.parametrize("name", ALL)
def test_failing_engine_only_costs_itself(name: str) -> None:
    space, asked = make_space(), []

    def qps(point: Point) -> float | None:
        asked.append(point.engine)
        return None if point.engine == SLOW else true_qps(point)

    search = Search(space, make_strategy(name), PLAN, math.inf)
    run(search, qps=qps)
    assert 1 <= asked.count(SLOW) <= 2
    assert search.state.best((FAST, X86)) is not None
    assert all(space.points[point].engine == FAST for point in search.predictions())


@pytest.mark.parametrize("name", ALL)
def test_engine_that_fails_in_some_configurations_is_searched_in_the_others(name: str) -> None:
    search = Search(make_space((FAST,)), make_strategy(name), PLAN, math.inf)
    run(search, qps=lambda point: None if point.knobs.threads == 8 else true_qps(point))
    assert best_threads(search) == 4


def test_known_results_are_not_measured_again() -> None:
    space = make_space((FAST,))
    known = {index: make_result(true_qps(point)) for index, point in enumerate(space.points)}
    assert run(Search(space, make_strategy("exhaustive"), PLAN, math.inf, known)) == []


def test_the_noisier_of_two_contenders_is_measured_again() -> None:
    space = make_space((FAST,), threads=(1, 2))
    search = Search(space, make_strategy(), PLAN, math.inf)
    for point, qps, error in ((0, 60.6, 0.02), (1, 55.4, 0.07)):
        search.state.tell(
            Trial(point), TrialResult(qps, 0.0, setup_s=1.0, seconds=4.0, error=error)
        )
    assert search.next() == Trial(1)


def test_search_without_power_looks_for_the_highest_qps_only() -> None:
    search = Search(make_space((FAST,)), make_strategy(), PLAN, math.inf)
    run(search, watts=0.0)
    assert all(each.watts == 0.0 for each in search.predictions().values())


def test_modes_are_measured_one_after_the_other() -> None:
    points = [
        Point(engine, ("agx", ""), Configuration(count, mode), Knobs(count, 2, mhz))
        for engine in (FAST, SLOW)
        for mode, mhz in (("a", 1000.0), ("b", 2000.0))
        for count in (1, 2)
    ]
    search = Search(SearchSpace(points), make_strategy("exhaustive"), PLAN, math.inf)
    modes = [points[point].configuration.power_mode for point in run(search)]
    assert sum(before != after for before, after in pairwise(modes)) == 1


def test_space_has_points_and_each_once() -> None:
    with pytest.raises(InvalidInput, match="no configuration"):
        SearchSpace([])
    point = make_space().points[0]
    with pytest.raises(InvalidInput, match="twice"):
        SearchSpace([point, point])


def test_measurement_of_one_row_says_something_about_a_similar_one() -> None:
    space = make_space()
    process = SharedProcess(space, QPS, expected_log_qps)
    for index, point in enumerate(space.points):
        if point.engine == FAST:
            process.observe(index, math.log(true_qps(point)), 0.02)
    process.observe(4, math.log(true_qps(space.points[4])), 0.02)
    for index in range(5, 8):
        truth = math.log(true_qps(space.points[index]))
        assert abs(process.mean[index] - truth) < 0.1
        assert 0.02 < process.deviation(index) < 0.5


def test_posterior_equals_the_formula_for_all_measurements_at_once() -> None:
    space = make_space()
    process = SharedProcess(space, QPS, expected_log_qps)
    prior_mean, prior = process.mean, process.covariance
    at, values, error = [0, 3, 5], np.array([2.0, 3.5, 1.0]), 0.5
    for point, value in zip(at, values, strict=True):
        process.observe(point, float(value), error)
    seen = prior[np.ix_(at, at)] + error**2 * np.eye(len(at))
    gain = prior[:, at] @ np.linalg.inv(seen)
    assert np.allclose(process.mean, prior_mean + gain @ (values - prior_mean[at]))
    assert np.allclose(process.covariance, prior - gain @ prior[at, :])


def test_surprise_widens_the_error_of_its_row_most() -> None:
    space = make_space()
    process = SharedProcess(space, QPS, expected_log_qps)
    for index in (0, 1, 4, 5):
        process.observe(index, math.log(true_qps(space.points[index])), 0.02)
    before = process.deviation(2), process.deviation(6)
    process.observe(3, math.log(true_qps(space.points[3])) - 3.0, 0.02)
    assert process.deviation(2) > 1.5 * before[0]
    assert before[1] < process.deviation(6) < 1.4 * before[1]
    assert process.mean[3] == pytest.approx(math.log(true_qps(space.points[3])) - 3.0, abs=0.1)


def test_repetitions_that_disagree_make_all_measurements_less_certain() -> None:
    process = SharedProcess(make_space(), QPS, expected_log_qps)
    for value in (3.0, 3.1, 2.9, 3.1, 2.9):
        process.observe(0, value, 0.02)
    assert process.error(0.02) > 0.04
    assert process.mean[0] == pytest.approx(3.0, abs=0.03)


def board_space() -> SearchSpace:
    """Return three engines on a board in four modes, one with a low clock."""
    return SearchSpace(
        [
            Point(EngineName(f"e{number}"), ("agx", ""), Configuration(count, mode), knobs)
            for number in range(3)
            for mode, mhz in (("a", 2200.0), ("b", 2000.0), ("c", 1800.0), ("slow", 900.0))
            for count in (1, 2, 4, 8)
            for knobs in (Knobs(count, 8, mhz),)
        ]
    )


def test_mode_off_the_trend_of_its_clock_is_found() -> None:
    space = board_space()
    search = Search(space, STRATEGIES.create("gp", {"objective": "qps"}), PLAN, 0.25)
    while (trial := search.next()) is not None:
        point = space.points[trial.point]
        factor = 6.0 if point.configuration.power_mode == "slow" else 1.0
        qps = factor * math.exp(expected_log_qps(point.knobs)) / 100
        run_s = 1.0 + PLAN.run_s(qps, full=False)
        search.state.tell(trial, TrialResult(qps, 0.0, setup_s=1.0, seconds=run_s))
    for row in space.rows:
        best = search.state.best(row)
        assert best is not None
        assert space.points[best].configuration.power_mode == "slow"


@pytest.mark.parametrize("objective", ["qps", "front"])
def test_search_spends_its_budget(fleet: SimulatedFleet, objective: str) -> None:
    search = run_search(fleet, Method("gp", {"objective": objective}, 0.2), seed=2)
    # The budget is a share of what is expected, which the last measurement changes, too.
    assert search.state.spent_s == pytest.approx(search.budget_s(), rel=0.03)


def test_search_copes_with_noise() -> None:
    [family] = [family for family in FAMILIES if family.name == "noise of 5 to 10 %"]
    surface = draw_surface(family, 300)
    outcome = judge(surface, run_search(surface, Method("gp", {"objective": "qps"}), seed=300))
    assert outcome.share <= 0.25
    assert outcome.regrets.mean() <= 0.015
    assert np.mean(np.abs(outcome.errors) <= 2 * outcome.stated) >= 0.85


def test_expected_improvement_grows_with_gain_and_uncertainty() -> None:
    gains = np.array([-0.5, 0.0, 0.5])
    assert np.all(np.diff(improvement(gains, np.full(3, 0.1))) > 0)
    assert improvement(np.zeros(1), np.ones(1))[0] == pytest.approx(1 / math.sqrt(2 * math.pi))
    # Even what seems certain is not given up at once.
    assert expected_improvement(np.array([-0.2]), np.array([0.01]))[0] > 1e-4


def test_front_has_the_points_that_no_other_beats() -> None:
    points = [(3.0, 1.0), (2.0, 2.0), (1.0, 3.0), (1.5, 1.5), (2.0, 1.0), (3.0, 1.0)]
    assert front(points, lambda point: point) == [(3.0, 1.0), (2.0, 2.0), (1.0, 3.0)]
    assert hypervolume(points) == 6.0
    assert hypervolume([]) == 0.0
