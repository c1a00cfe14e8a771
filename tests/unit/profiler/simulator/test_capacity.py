"""Least fleets for a demand."""

import math
from dataclasses import replace

import pytest
from msgspec import structs
from typer.testing import CliRunner

from profiler.dictionary.files import load_dictionary
from profiler.simulator.capacity import MARGIN, CapacityPlanner
from profiler.simulator.cli import capacity_app as app
from profiler.simulator.simulation import SimulationRun, scheduling_settings, simulate
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from profiler.simulator.workload import EXPERIMENTS, Profile, Workload, draw
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import WorkerClass
from synergai.errors import InvalidInput, InvalidSettings
from tests.cores import new_entry

FAST, SLOW = WorkerClass("fast"), WorkerClass("slow")


def a_profile() -> Profile:
    return Profile(new_entry("engine", name, qps) for name, qps in ((FAST, 100.0), (SLOW, 50.0)))


def a_planner(
    profile: Profile,
    *,
    rate: float = 1.0,
    violations: float = 0.1,
    max_workers: int = 32,
) -> CapacityPlanner:
    workload = draw(
        profile,
        EXPERIMENTS["DL-FL"],
        0,
        sessions="prewarmed",
        estimate_error=0.0,
        rate=rate,
        count=12,
    )
    return CapacityPlanner(
        workloads=[workload],
        settings=scheduling_settings("malleable"),
        violations=violations,
        max_workers=max_workers,
    )


@pytest.mark.parametrize("rate", [0.5, 4.0])
@pytest.mark.parametrize("name", [FAST, SLOW])
def test_least_fleet_suffices_and_one_worker_less_does_not(name: WorkerClass, rate: float) -> None:
    planner = a_planner(a_profile(), rate=rate)
    least = planner.least([name])
    assert least is not None
    assert least.violations <= 0.1
    count = least.fleet[name]
    assert count == 1 or planner.sufficient({name: count - 1}) is None


def test_more_demand_needs_more_workers() -> None:
    counts = []
    for rate in (1.0, 16.0, 32.0):
        least = a_planner(a_profile(), rate=rate).least([FAST])
        assert least is not None
        counts.append(least.fleet[FAST])
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_demand_beyond_the_limit_has_no_option() -> None:
    assert a_planner(a_profile(), rate=1e6, max_workers=1).plan() == []


def test_plan_is_of_each_class_alone_and_of_equal_numbers() -> None:
    planner = a_planner(a_profile(), rate=4.0)
    fast, slow, mixed = (option.fleet for option in planner.plan())
    assert (set(fast), set(slow)) == ({FAST}, {SLOW})
    assert mixed[FAST] == mixed[SLOW] <= fast[FAST] <= slow[SLOW]


def test_each_simulated_fleet_is_reported_once() -> None:
    planner = a_planner(a_profile(), rate=4.0)
    fleets: list[dict[WorkerClass, int]] = []
    planner.on_fleet = lambda fleet: fleets.append(dict(fleet))
    assert planner.plan()
    assert len({tuple(sorted(fleet.items())) for fleet in fleets}) == len(fleets)


def test_seeds_after_too_many_late_jobs_are_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = a_planner(a_profile(), rate=32.0)
    planner.workloads = [*planner.workloads] * 3
    simulated: list[Workload] = []

    def counted(workload: Workload, settings: SchedulingSettings) -> SimulationRun:
        simulated.append(workload)
        return simulate(workload, settings)

    monkeypatch.setattr("profiler.simulator.capacity.simulate", counted)
    assert planner.sufficient({SLOW: 1}) is None
    assert len(simulated) == 1


def test_jobs_without_deadlines_need_one_worker() -> None:
    planner = a_planner(a_profile())
    [workload] = planner.workloads
    jobs = tuple(structs.replace(job, deadline=math.inf) for job in workload.jobs)
    planner.workloads = [replace(workload, jobs=jobs)]
    least = planner.least([SLOW])
    assert least is not None
    assert least.fleet == {SLOW: 1}


def test_violations_are_within_the_limit_by_a_margin_of_their_error() -> None:
    profile = Profile(load_dictionary(RECONSTRUCTED_PROFILE))
    workloads = [draw(profile, EXPERIMENTS["DH-FH"], seed, count=10) for seed in range(2)]
    planner = a_planner(profile, violations=0.99)
    planner.workloads = workloads
    fleet = {WorkerClass("agx"): 2, WorkerClass("nx"): 1}
    option = planner.sufficient(fleet)
    assert option is not None
    assert option.error > 0.0
    for margin, suffices in ((0.99, False), (1.01, True)):
        limit = option.violations + margin * MARGIN * option.error
        found = replace(planner, violations=limit).sufficient(fleet)
        assert (found is not None) == suffices


def test_command_prints_the_least_fleets() -> None:
    result = CliRunner().invoke(app, ["--jobs", "3", "--violations", "90"])
    assert result.exit_code == 0, result.output
    assert result.stdout.split()[:4] == ["fleet", "workers", "violations", "busy"]


def test_command_says_that_no_fleet_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapacityPlanner, "plan", lambda _: [])
    result = CliRunner().invoke(app, ["--load", "20"])
    assert result.exit_code == 1
    assert "agx alone: up to 256 workers do not keep violations within 5 %" in result.stdout


@pytest.mark.parametrize(
    "arguments", [("--load", "1e-320"), ("--violations", "100"), ("--seeds", "ten")]
)
def test_command_refuses_what_makes_no_sense(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InvalidInput | InvalidSettings)
