"""Least fleets for a demand."""

import itertools
import math
import re
from dataclasses import replace
from statistics import fmean

import pytest
from msgspec import structs
from typer.testing import CliRunner

from profiler.dictionary.files import load_dictionary
from profiler.simulator.capacity import MARGIN, CapacityPlanner, plan
from profiler.simulator.cli import capacity_app as app
from profiler.simulator.simulation import job_outcomes, scheduling_settings, simulate
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from profiler.simulator.workload import EXPERIMENTS, Profile, draw
from synergai.domain import JobId, WorkerClass
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
    costs: dict[WorkerClass, float] | None = None,
) -> CapacityPlanner:
    workload, fresh = (
        draw(
            profile,
            EXPERIMENTS["DL-FL"],
            seed,
            sessions="prewarmed",
            estimate_error=0.0,
            rate=rate,
            count=12,
        )
        for seed in (0, 1)
    )
    return CapacityPlanner(
        workloads=[workload],
        fresh=[fresh],
        settings=scheduling_settings("malleable"),
        violations=violations,
        max_workers=max_workers,
        costs=costs or {},
    )


@pytest.mark.parametrize("rate", [0.5, 4.0])
@pytest.mark.parametrize("name", [FAST, SLOW])
def test_least_fleet_suffices_and_one_worker_less_does_not(name: WorkerClass, rate: float) -> None:
    planner = a_planner(a_profile(), rate=rate)
    least = planner.least({name: 1})
    assert least is not None
    assert least.violations <= 0.1
    count = least.fleet[name]
    assert count == 1 or planner.sufficient({name: count - 1}) is None


def test_more_demand_needs_more_workers() -> None:
    counts = []
    for rate in (1.0, 4.0, 8.0):
        least = a_planner(a_profile(), rate=rate).least({FAST: 1})
        assert least is not None
        counts.append(least.fleet[FAST])
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_cheapest_class_is_the_best_option() -> None:
    best, *_ = plan(a_planner(a_profile(), rate=4.0, costs={FAST: 100.0, SLOW: 1.0}))
    assert set(best.fleet) == {SLOW}
    assert best.cost == best.fleet[SLOW]


def test_share_of_violations_is_not_rounded_below_a_whole_job() -> None:
    profile = a_profile()
    planner = a_planner(profile, violations=0.29)  # of 100 jobs a little less than 29
    [workload] = planner.workloads
    on_time = structs.replace(workload.jobs[0], queries=1, arrival=0.0, deadline=1e6)
    late = structs.replace(on_time, queries=10**6, deadline=1.0)
    jobs = tuple(
        structs.replace(late if number < 29 else on_time, id=JobId(str(number)))
        for number in range(100)
    )
    factors = {(job.id, name): 1.0 for job in jobs for name in profile.classes}
    planner.workloads = [replace(workload, jobs=jobs, factors=factors)]
    assert planner._too_few({FAST: 1}) == 0


def test_demand_beyond_the_limit_has_no_option() -> None:
    assert plan(a_planner(a_profile(), rate=1e6, max_workers=1)) == []


def test_insufficient_fleets_are_recognised_without_whole_simulations() -> None:
    quick = a_planner(a_profile(), rate=4.0)
    whole = a_planner(a_profile(), rate=4.0)
    runs = []
    for fast, slow in itertools.product((1, 3), (1, 3, 5)):
        fleet = {FAST: fast, SLOW: slow}
        shares = []
        for workload in (*whole.workloads, *whole.fresh):
            run = simulate(replace(workload, fleet=fleet), whole.settings)
            outcomes = job_outcomes(workload.jobs, run.spans, run.finished)
            shares.append(fmean(outcome.violated for outcome in outcomes))
        runs.append(max(shares) <= whole.violations)
        assert (quick.sufficient(fleet) is not None) == runs[-1]
    assert {*runs} == {False, True}


def test_each_fleet_is_simulated_at_most_once_and_reported() -> None:
    planner = a_planner(a_profile(), rate=4.0, costs={FAST: 1.0, SLOW: 0.4})
    fleets: list[dict[WorkerClass, int]] = []
    planner.on_fleet = lambda fleet: fleets.append(dict(fleet))
    assert plan(planner)
    assert len({tuple(sorted(fleet.items())) for fleet in fleets}) == len(fleets)


def test_jobs_without_deadlines_need_one_worker() -> None:
    planner = a_planner(a_profile())
    [workload] = planner.workloads
    jobs = tuple(structs.replace(job, deadline=math.inf) for job in workload.jobs)
    planner.workloads = planner.fresh = [replace(workload, jobs=jobs)]
    least = planner.least({SLOW: 1})
    assert least is not None
    assert least.fleet == {SLOW: 1}


def test_a_fleet_that_fails_on_fresh_seeds_does_not_suffice() -> None:
    planner = a_planner(a_profile(), rate=0.5)
    least = planner.least({FAST: 1})
    assert least is not None
    other = a_planner(a_profile(), rate=0.5)
    other.fresh = a_planner(a_profile(), rate=32.0).workloads
    assert other.sufficient(least.fleet) is None


def test_a_screened_fleet_needs_no_margin() -> None:
    profile = Profile(load_dictionary(RECONSTRUCTED_PROFILE))
    planner = a_planner(profile)
    planner.workloads = [draw(profile, EXPERIMENTS["DH-FH"], seed, count=10) for seed in range(2)]
    fleet = {WorkerClass("agx"): 2, WorkerClass("nx"): 1}
    late = 0
    for workload in planner.workloads:
        run = simulate(replace(workload, fleet=fleet), planner.settings)
        late += sum(job.violated for job in job_outcomes(workload.jobs, run.spans, run.finished))
    jobs = sum(len(workload.jobs) for workload in planner.workloads)
    for allowed, suffices in ((late - 1, False), (late, True)):
        found = replace(planner, violations=allowed / jobs, _known={}, _screened={})
        assert found.may_suffice(fleet) == suffices
        assert found.sufficient(fleet) is None


def test_violations_are_within_the_limit_by_a_margin_of_their_error() -> None:
    profile = Profile(load_dictionary(RECONSTRUCTED_PROFILE))
    workloads = [draw(profile, EXPERIMENTS["DH-FH"], seed, count=10) for seed in range(2)]
    planner = a_planner(profile, violations=0.99)
    planner.workloads = planner.fresh = workloads
    fleet = {WorkerClass("agx"): 2, WorkerClass("nx"): 1}
    option = planner.sufficient(fleet)
    assert option is not None
    assert option.error > 0.0
    for margin, suffices in ((0.99, False), (1.01, True)):
        limit = option.violations + margin * MARGIN * option.error
        found = replace(planner, violations=limit, _known={}, _screened={}).sufficient(fleet)
        assert (found is not None) == suffices
        assert found is None or found.sure == pytest.approx(0.945, abs=0.005)


def test_command_prints_the_least_fleets() -> None:
    result = CliRunner().invoke(app, ["--jobs", "3", "--violations", "90"])
    assert result.exit_code == 0, result.output
    assert result.stdout.split()[:6] == ["fleet", "workers", "violations", "sure", "busy", "cost/h"]


def test_command_says_that_no_fleet_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiler.simulator.capacity.plan", lambda _: [])
    result = CliRunner().invoke(app, ["--load", "20"])
    assert result.exit_code == 1
    assert result.stdout.startswith("no fleet of up to 256 workers of each class")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seeds", "0-8"], "fewer than 10 seeds"),
        (["--cost", "x86=1", "--jobs", "3"], "--cost lacks agx, nx"),  # else these cost nothing
        (["--cost", "x86=1e308,agx=1e-308"], ""),
        (["--cost", "x86=inf"], ""),
        (["--load", "1e-320"], ""),
    ],
)
def test_command_refuses_what_makes_no_sense(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InvalidInput | InvalidSettings)
    assert re.search(complaint, str(result.exception))
