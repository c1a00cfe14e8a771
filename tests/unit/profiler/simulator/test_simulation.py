"""Full simulations of the thesis's experiments, and their audit."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest
from msgspec import structs

from benchmarks.violation_bounds import violations_at_least
from profiler.dictionary.files import load_dictionary
from profiler.simulator.cli import METRICS, rows
from profiler.simulator.simulation import SimulationRun, scheduling_settings, simulate, summarize
from profiler.simulator.simulator_settings import (
    RECONSTRUCTED_PROFILE,
    SimulatorSettings,
    parse_seeds,
)
from profiler.simulator.sweep import sweep
from profiler.simulator.virtual_worker import BusySpan
from profiler.simulator.workload import (
    EXPERIMENTS,
    QUERY_COUNTS,
    Profile,
    Sessions,
    TPre,
    Workload,
    draw,
)
from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import EngineName, WorkerClass, WorkerId
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.simulation_audit import AuditFailed, audit


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile(load_dictionary(RECONSTRUCTED_PROFILE))


def make_run(
    profile: Profile,
    policy: str,
    experiment: str = "DH-FH",
    seed: int = 3,
    sessions: Sessions = "cold",
    t_pre: TPre = "fixed",
) -> SimulationRun:
    workload = draw(profile, EXPERIMENTS[experiment], seed, sessions=sessions, t_pre=t_pre)
    return simulate(workload, scheduling_settings(policy))


# --- the workload -----------------------------------------------------------------------


def test_demands_and_gaps_are_the_thesis_percentiles(profile: Profile) -> None:
    # Table 7.1 prints 99.40 and 179.23 s; the reconstruction is within one percent of them.
    mobilenet = EngineName("onnx_mobilenet_op11")
    assert profile.qos_s(mobilenet, 3900, 25.0) == pytest.approx(99.40, rel=0.01)
    assert profile.qos_s(mobilenet, 3900, 50.0) == pytest.approx(179.23, rel=0.01)
    assert profile.mean_gap_s(50.0) == pytest.approx(115.4, abs=0.1)
    assert profile.mean_gap_s(25.0) == pytest.approx(56.3, abs=0.1)


def test_strongest_class_comes_first(profile: Profile) -> None:
    assert profile.classes == ["x86", "agx", "nx"]


def test_two_low_and_six_high_demands_are_infeasible_for_any_single_worker(
    profile: Profile,
) -> None:
    def infeasible(percentile: float) -> int:
        return sum(
            min(
                entry.t_pre_s + queries / entry.qps
                for name in profile.classes
                for entry in profile.entries(engine, name)
            )
            > profile.qos_s(engine, queries, percentile)
            for engine in profile.engines
            for queries in QUERY_COUNTS
        )

    assert (infeasible(50.0), infeasible(25.0)) == (2, 6)


def test_seed_gives_the_same_jobs_and_deviations_in_every_experiment(profile: Profile) -> None:
    one, other = (draw(profile, EXPERIMENTS[name], 7) for name in ("DL-FL", "DH-FH"))
    assert [(j.engine, j.queries) for j in one.jobs] == [(j.engine, j.queries) for j in other.jobs]
    assert one.factors == other.factors
    gaps = [np.diff([job.arrival for job in workload.jobs]) for workload in (one, other)]
    assert np.allclose(gaps[0] / gaps[1], profile.mean_gap_s(50.0) / profile.mean_gap_s(25.0))


def test_profile_without_a_common_engine_is_rejected(profile: Profile) -> None:
    entries = [
        *profile.entries(profile.engines[0], WorkerClass("x86")),
        *profile.entries(profile.engines[1], WorkerClass("nx")),
    ]
    with pytest.raises(InvalidInput, match="profiled on every worker class"):
        Profile(entries)


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-3", (0, 1, 2, 3)), ("5", (5,)), ("1, 4-5", (1, 4, 5))]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "0-99999999", "1;2", "1" * 5000])
def test_invalid_seeds_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_seeds(text)


# --- runs -------------------------------------------------------------------------------


class OneClassProfiled(Workload):
    """A workload whose scheduler knows the profiles of the strongest class only."""

    def scheduler_dictionary(self) -> ConfigurationDictionary:
        strongest = self.profile.classes[0]
        known = [
            entry
            for engine in self.profile.engines
            for entry in self.profile.entries(engine, strongest)
        ]
        return ConfigurationDictionary(known)


def test_workers_without_a_profile_help_with_the_only_job(profile: Profile) -> None:
    drawn = draw(profile, EXPERIMENTS["DL-FL"], 3, sessions="warm")
    job = structs.replace(
        drawn.jobs[0],
        engine=EngineName("onnx_resnet50_op11"),
        queries=max(QUERY_COUNTS),
        deadline=math.inf,
    )
    workload = OneClassProfiled(
        experiment="DL-FL",
        seed=3,
        profile=profile,
        sessions="warm",
        t_pre="fixed",
        jobs=(job,),
        factors=drawn.factors,
    )
    run = simulate(workload, scheduling_settings("malleable"))
    done = {WorkerId(name): 0 for name in profile.classes}
    for span in run.spans:
        done[span.worker_id] += span.done
    assert sum(done.values()) == job.queries
    assert min(done.values()) > SchedulingSettings().probe_queries


@pytest.mark.parametrize("sessions", ["cold", "warm", "prewarmed"])
@pytest.mark.parametrize("t_pre", ["none", "proportional", "fixed"])
@pytest.mark.parametrize("policy", POLICIES.names())
def test_every_policy_finishes_all_jobs_and_passes_the_audit(
    profile: Profile, policy: str, sessions: Sessions, t_pre: TPre
) -> None:
    run = make_run(profile, policy, sessions=sessions, t_pre=t_pre)
    audit(run)
    assert len(run.finished) == len(run.workload.jobs)


def test_without_t_pre_every_query_runs_at_once(profile: Profile) -> None:
    run = make_run(profile, "synergai", t_pre="none")
    assert all(span.ready == span.started for span in run.spans)
    assert all(entry.t_pre_s == 0 for entry in run.workload.scheduler_dictionary())


def test_same_workload_gives_the_same_run(profile: Profile) -> None:
    one, other = (make_run(profile, "malleable") for _ in range(2))
    assert one.spans == other.spans


def test_rejected_jobs_count_as_violations(profile: Profile) -> None:
    workload = draw(profile, EXPERIMENTS["DH-FH"], 3)
    settings = SchedulingSettings(policy="synergai", mode_switch_s=0.0, infeasible="reject")
    run = simulate(workload, settings)
    audit(run)
    rejected = len(workload.jobs) - len(run.finished)
    assert rejected > 0
    assert summarize(run).violations >= rejected


def test_only_the_malleable_policy_splits_jobs(profile: Profile) -> None:
    for policy in POLICIES.names():
        run = make_run(profile, policy)
        split = len({span.job_id for span in run.spans}) < len(run.spans)
        assert split == (policy == "malleable"), policy


def test_malleable_meets_every_deadline_once_sessions_are_loaded(profile: Profile) -> None:
    for experiment in EXPERIMENTS:
        run = make_run(profile, "malleable", experiment, sessions="prewarmed")
        assert summarize(run).violations == 0


@pytest.mark.parametrize("sessions", ["cold", "warm", "prewarmed"])
def test_malleable_has_no_more_violations_and_a_shorter_mean_than_the_thesis(
    profile: Profile, sessions: Sessions
) -> None:
    for seed in (0, 1):
        ours, thesis = (
            [summarize(make_run(profile, policy, name, seed, sessions)) for name in EXPERIMENTS]
            for policy in ("malleable", "synergai")
        )
        assert sum(r.violations for r in ours) <= sum(r.violations for r in thesis)
        assert sum(r.e2e_mean_s for r in ours) < sum(r.e2e_mean_s for r in thesis)


@pytest.mark.parametrize("sessions", ["cold", "warm", "prewarmed"])
def test_no_run_is_below_its_lower_bound(profile: Profile, sessions: Sessions) -> None:
    for policy in ("malleable", "synergai"):
        run = make_run(profile, policy, "DH-FL", 1, sessions)
        assert violations_at_least(run.workload) <= summarize(run).violations


def test_bound_counts_infeasible_jobs(profile: Profile) -> None:
    workload = draw(profile, EXPERIMENTS["DL-FL"], 0, sessions="prewarmed")
    infeasible = {workload.jobs[0].id, workload.jobs[5].id}
    jobs = tuple(
        structs.replace(job, deadline=job.arrival + 0.1) if job.id in infeasible else job
        for job in workload.jobs
    )
    assert violations_at_least(replace(workload, jobs=jobs)) == len(infeasible)


# --- the audit --------------------------------------------------------------------------


def shifted(span: BusySpan, seconds: float) -> BusySpan:
    return replace(
        span, started=span.started + seconds, ready=span.ready + seconds, ended=span.ended + seconds
    )


def with_first_span(run: SimulationRun, *spans: BusySpan) -> SimulationRun:
    return replace(run, spans=(*spans, *run.spans[1:]))


def with_overlap(run: SimulationRun) -> SimulationRun:
    overlapping = replace(run.spans[1], started=run.spans[0].ended - 1.0)
    return replace(run, spans=(run.spans[0], overlapping, *run.spans[2:]))


def with_premature_start(run: SimulationRun) -> SimulationRun:
    job = next(job for job in run.workload.jobs if job.id == run.spans[0].job_id)
    return with_first_span(run, replace(run.spans[0], started=job.arrival - 1.0))


def with_fast_queries(run: SimulationRun) -> SimulationRun:
    first = run.spans[0]
    return with_first_span(
        run, replace(first, ready=first.ended - 0.9 * (first.ended - first.ready))
    )


def with_early_finish(run: SimulationRun) -> SimulationRun:
    job_id = run.workload.jobs[0].id
    return replace(run, finished={**run.finished, job_id: run.finished[job_id] - 1.0})


@pytest.mark.parametrize(
    ("fault", "falsified", "sessions"),
    [
        (
            "finished after",
            lambda run: with_first_span(run, replace(run.spans[0], done=run.spans[0].done - 1)),
            "cold",
        ),
        (
            "run twice",
            lambda run: with_first_span(run, run.spans[0], shifted(run.spans[0], 10_000.0)),
            "cold",
        ),
        ("at once", with_overlap, "cold"),
        ("before it arrived", with_premature_start, "cold"),
        (
            "did not pay",
            lambda run: with_first_span(run, replace(run.spans[0], ready=run.spans[0].started)),
            "cold",
        ),
        ("faster than possible", with_fast_queries, "prewarmed"),
        ("its last query at", with_early_finish, "cold"),
    ],
)
def test_audit_finds_an_impossible_run(
    profile: Profile,
    fault: str,
    falsified: Callable[[SimulationRun], SimulationRun],
    sessions: Sessions,
) -> None:
    with pytest.raises(AuditFailed, match=fault):
        audit(falsified(make_run(profile, "synergai", sessions=sessions)))


# --- many runs --------------------------------------------------------------------------


def test_sweep_returns_one_record_per_run_with_the_documented_fields(profile: Profile) -> None:
    settings = SimulatorSettings(
        experiments=("DL-FL", "DH-FH"), policies=("rr", "synergai"), seeds="0-1"
    )
    results = list(sweep(settings, profile))
    assert len({(r.experiment, r.policy, r.seed) for r in results}) == len(results) == 8
    assert list(json.loads(json.dumps(asdict(results[0])))) == [
        "experiment",
        "policy",
        "seed",
        "jobs",
        "violations",
        "mean_wait_s",
        "mean_excess_s",
        "excess_p99_s",
        "e2e_mean_s",
        "e2e_p99_s",
        "decisions",
        "decision_p99_us",
    ]


def test_table_shows_mean_and_spread_and_the_sum_of_the_means(profile: Profile) -> None:
    settings = SimulatorSettings(experiments=("DL-FL", "DH-FL"), policies=("be",), seeds="0-1")
    results = list(sweep(settings, profile))
    [[name, first, second, total]] = rows(results, METRICS[0], ("be",), settings.experiments)
    means = [float(cell.split(" ± ")[0]) for cell in (first, second)]
    assert name == "be"
    assert float(total) == pytest.approx(sum(means))


def test_unknown_policy_is_rejected_with_a_list_of_policies() -> None:
    with pytest.raises(InvalidInput, match="there is no policy 'best'; there are: be, "):
        SimulatorSettings.load({"policies": "best"})
