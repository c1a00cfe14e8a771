"""Scenarios in which rules that choose variants are compared, and the bound on schedules."""

from dataclasses import replace
from itertools import product
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.variants.bounds import accuracy_at_most, relative_accuracy_at_most, schedule_at_most
from benchmarks.variants.demand import Shape, draw_arrivals
from benchmarks.variants.scenarios import SCENARIOS, draw
from benchmarks.variants.simulation import OURS, Scenario, Start, simulate
from benchmarks.variants.study import draw_requests
from synergai.domain import EngineName

COLD = Start(cold=True)
ENGINE, OTHER = EngineName("fashion"), EngineName("other")
SCENARIO = Scenario(
    name="test",
    fronts={
        ENGINE: {"large": (0.2, 0.9), "small": (0.05, 0.72)},
        OTHER: {"large": (0.3, 0.5), "small": (0.1, 0.4)},
    },
    layout=[frozenset({ENGINE, OTHER})],
)


PROFILED = ["single-server", "three-servers", "co-located", "distributed"]
"""Scenarios in which the profile holds."""


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_requests_of_each_scenario_are_answered_in_time(name: str) -> None:
    scenario = SCENARIOS[name]
    engines = sorted(scenario.fronts)
    arrivals = [(0.5 * number, engines[number % len(engines)]) for number in range(6)]
    answers = simulate(scenario, arrivals, 0)
    assert len(answers) == 6
    assert all(answer.variant for answer in answers)


requests = st.lists(
    st.tuples(st.integers(0, 12).map(lambda at: at / 10), st.sampled_from([ENGINE, OTHER])),
    min_size=1,
    max_size=5,
).map(sorted)


def best_by_trying(arrivals: list[tuple[float, EngineName]]) -> float:
    """Return the best mean relative accuracy of all choices of variants in order of arrival."""
    best = 0.0
    fronts = SCENARIO.fronts
    options = [[(0.0, 0.0), *fronts[engine].values()] for _, engine in arrivals]
    for chosen in product(*options):
        free_at = total = 0.0
        for (at, engine), (seconds, accuracy) in zip(arrivals, chosen, strict=True):
            if not accuracy:
                continue
            free_at = max(free_at, at) + seconds
            if free_at > at + SCENARIO.deadline_s + 1e-6:
                break
            total += accuracy / max(each for _, each in fronts[engine].values())
        else:
            best = max(best, total)
    return best / len(arrivals)


@settings(deadline=None, max_examples=40)
@given(requests)
def test_the_bound_on_schedules_is_the_best_of_them(
    arrivals: list[tuple[float, EngineName]],
) -> None:
    assert schedule_at_most(SCENARIO, arrivals) == pytest.approx(best_by_trying(arrivals))


def test_the_bound_on_schedules_is_below_that_of_the_linear_program() -> None:
    arrivals = [(0.07 * number, (ENGINE, OTHER)[number % 2]) for number in range(30)]
    whole = schedule_at_most(SCENARIO, arrivals)
    assert whole <= relative_accuracy_at_most(SCENARIO, arrivals) + 1e-9
    answers = simulate(SCENARIO, arrivals, 0)
    best = {ENGINE: 0.9, OTHER: 0.5}
    assert sum(each.accuracy / best[each.engine] for each in answers) / 30 <= whole


@pytest.mark.parametrize("name", PROFILED)
def test_a_cold_start_costs_only_the_requests_of_the_first_loads(name: str) -> None:
    scenario = SCENARIOS[name]
    engines = sorted(scenario.fronts)
    arrivals = [(0.1 * number, engines[number % len(engines)]) for number in range(200)]
    late = [each for each in simulate(scenario, arrivals, 0, start=COLD) if not each.variant]
    first_load_s = scenario.start_s + scenario.load_s
    assert late
    assert all(each.arrival < len(engines) * first_load_s + scenario.deadline_s for each in late)


@pytest.mark.parametrize("name", PROFILED)
def test_no_request_is_late_if_workers_had_time_to_preload(name: str) -> None:
    scenario = SCENARIOS[name]
    engines = sorted(scenario.fronts)
    arrivals = [(0.1 * number, engines[number % len(engines)]) for number in range(50)]
    start = replace(COLD, lead_s=10.0)
    assert all(each.variant for each in simulate(scenario, arrivals, 0, start=start))


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("seed", [7, 8])
def test_a_short_run_with_varying_times_is_not_worse_than_under_model_switching(
    seed: int, servers: int
) -> None:
    scenario, rate = draw(seed, servers, error=0.3)
    requests = draw_requests(scenario, "twitter", rate, 15, seed)
    ours, theirs = (
        fmean(each.accuracy for each in simulate(scenario, requests, seed, rule=rule))
        for rule in (OURS, "model-switching")
    )
    assert ours >= theirs


def test_what_engines_slow_each_other_down_by_is_learnt() -> None:
    scenario = replace(SCENARIOS["interfering"], interference=0.4)
    slower = {
        engine: {name: (1.4 * seconds, value) for name, (seconds, value) in front.items()}
        for engine, front in scenario.fronts.items()
    }
    requests = draw_requests(scenario, "twitter", 9.0, 60, seed=100)
    learnt = simulate(scenario, requests, 0)
    known = simulate(replace(scenario, profile=slower), requests, 0)
    assert all(each.variant for each in learnt)
    assert fmean(a.accuracy for a in learnt) > fmean(a.accuracy for a in known) - 0.006


def test_the_time_of_several_servers_is_used() -> None:
    scenario = SCENARIOS["three-servers"]
    requests = draw_requests(scenario, "twitter", 24.0, 15, seed=100)
    answers = simulate(scenario, requests, 0)
    assert all(each.variant for each in answers)
    [engine] = scenario.fronts
    bound = accuracy_at_most(scenario, engine, [at for at, _ in requests])
    # They are 0.0011 below the bound. They would be 0.0014 below it if no more time were planned of
    # several workers, and 0.0017 if none were added for an engine alone either.
    assert sum(each.accuracy for each in answers) / len(answers) > bound - 0.0013


@pytest.mark.parametrize("rule", ["model-switching", "slackfit"])
@pytest.mark.parametrize("shape", ["linear", "twitter"])
def test_no_other_rule_is_better_on_one_server_with_exact_times(shape: Shape, rule: str) -> None:
    ours, other = exact_accuracies("single-server", shape, 8.0, rule)
    assert ours > other


def exact_accuracies(name: str, shape: Shape, rate: float, rule: str) -> tuple[float, float]:
    """Return the mean accuracy of the allowance and of another rule, with exact times."""
    scenario = replace(SCENARIOS[name], error=0.0)
    requests = draw_requests(scenario, shape, rate, 15, seed=100)
    ours, other = (
        fmean(each.accuracy for each in simulate(scenario, requests, 0, rule=each))
        for each in (OURS, rule)
    )
    return ours, other


def test_even_requests_follow_the_rate_without_chance() -> None:
    steady = draw_arrivals("constant", 4.0, 10, 0, "even")
    assert np.diff(steady) == pytest.approx([0.25] * (len(steady) - 1))
    rising = draw_arrivals("linear", 4.0, 100, 0, "even")
    assert np.diff(np.diff(rising[: len(rising) // 2])).max() == pytest.approx(0.0, abs=1e-6)
    assert len(rising) == pytest.approx(400, abs=1)


def test_change_of_variant_takes_the_worker_in_the_scenarios_that_say_so() -> None:
    requests = draw_requests(SCENARIOS["switching"], "twitter", 8.0, 120, 0)
    free, charged = (
        sum(not each.variant for each in simulate(SCENARIOS[name], requests, 0, rule="chain"))
        for name in ("single-server", "switching")
    )
    assert charged > free
    ours = [
        [each.variant for each in simulate(SCENARIOS[name], requests, 0)]
        for name in ("single-server", "switching")
    ]
    # The gateway keeps its variants loaded.
    assert ours[0] == ours[1]
