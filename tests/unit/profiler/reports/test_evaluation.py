"""The evaluation: statistics by hand, the thesis's own numbers, recorded and small studies."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from profiler.dictionary.files import load_dictionary
from profiler.reports.evaluation.figures import measure_demand, printed_qos_s
from profiler.reports.evaluation.report import StudyOrigin, evaluate
from profiler.reports.evaluation.study import (
    Study,
    outcome_of_log,
    outcome_of_run,
    outcomes_of_logs,
)
from profiler.reports.page import Report
from profiler.reports.printed import CELLS, EXPERIMENTS, TABLE_7_1, PrintedCell
from profiler.reports.statistics import Factors
from profiler.simulator.recording import read_log
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE, SimulatorSettings
from profiler.simulator.sweep import simulate_all
from profiler.simulator.workload import Profile
from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import Configuration, EngineName, JobId, Outcome, WorkerClass, WorkerId
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import dispatched, new_assignment, new_entry, new_job, new_worker
from tests.report_blocks import figures_of, rows_of

BASELINES = ("rr", "srr", "lru", "mru", "be")


def a_study(profile: Profile, *, policies: Iterable[str], **options: object) -> Study:
    values = {"policies": ",".join(policies), **options}
    settings = SimulatorSettings.load({name: str(value) for name, value in values.items()}, None)
    return Study(outcome_of_run(run, bound) for run, bound in simulate_all(settings, profile))


def a_report(study: Study, profile: Profile | None = None, *, thesis: bool = False) -> Report:
    origin = StudyOrigin(facts={}, profile=profile, is_reconstructed=thesis, made="now")
    return evaluate(study, origin)


@pytest.fixture(scope="module")
def reconstructed() -> Profile:
    return Profile(load_dictionary(RECONSTRUCTED_PROFILE))


@pytest.fixture(scope="module")
def study(reconstructed: Profile) -> Study:
    return a_study(reconstructed, policies=("srr", "be", "synergai"), seeds="0-1")


def test_factors_name_their_means() -> None:
    factors = Factors.of([4.0, 2.0, 9.0], [1.0, 2.0, 0.0])
    assert factors.arithmetic == pytest.approx(2.5)
    assert factors.geometric == pytest.approx(2.0)
    assert factors.harmonic == pytest.approx(1.6)
    assert factors.sums == pytest.approx(5.0)
    assert factors.skipped == 1
    assert Factors.of([1.0], [0.0]).arithmetic is None
    assert Factors.of([0.0, 2.0], [1.0, 1.0]).geometric is None


HEADLINES = {
    ("baselines", "violations"): 7.1,
    ("baselines", "excess"): 5.3,
    ("slo_mael", "violations"): 2.4,
}
"""Reductions that the summaries of chapters 7 and 8 state: others over SynergAI."""


def printed_factors(others: tuple[str, ...], value: Callable[[PrintedCell], float]) -> Factors:
    """Return the factors of policies over SynergAI that follow from the printed cells."""
    cells = [(policy, experiment) for policy in others for experiment in EXPERIMENTS]
    return Factors.of(
        [value(CELLS[cell]) for cell in cells],
        [value(CELLS["synergai", experiment]) for _, experiment in cells],
    )


def test_headline_ratios_do_not_follow_from_the_printed_cells() -> None:
    violations = printed_factors(BASELINES, lambda cell: cell.violations)
    excess = printed_factors(BASELINES, lambda cell: cell.excess_s)
    slo_mael = printed_factors(("slo_mael",), lambda cell: cell.violations)
    assert violations.arithmetic == pytest.approx(3.73, abs=0.005)
    assert violations.geometric == pytest.approx(3.06, abs=0.005)
    assert violations.sums == pytest.approx(2.65, abs=0.005)
    assert excess.arithmetic == pytest.approx(16.39, abs=0.005)
    assert excess.geometric == pytest.approx(7.05, abs=0.005)
    assert excess.sums == pytest.approx(6.05, abs=0.005)
    assert slo_mael.harmonic == pytest.approx(2.34, abs=0.005)
    for factors, headline in (
        (violations, HEADLINES["baselines", "violations"]),
        (excess, HEADLINES["baselines", "excess"]),
        (slo_mael, HEADLINES["slo_mael", "violations"]),
    ):
        means = (factors.arithmetic, factors.geometric, factors.harmonic, factors.sums)
        assert all(mean is not None and round(mean, 1) != headline for mean in means)


def test_printed_cells_are_complete() -> None:
    policies = (*BASELINES, "slo_mael", "synergai")
    assert CELLS.keys() == {(policy, e) for policy in policies for e in EXPERIMENTS}
    assert sum(cell.violations for (policy, _), cell in CELLS.items() if policy == "srr") == 79


def test_table_7_1_follows_from_the_reconstructed_profile(reconstructed: Profile) -> None:
    demand = measure_demand(reconstructed)
    assert demand.times[3900].keys() == TABLE_7_1.keys()
    for engine in demand.times[3900]:
        for queries in demand.times:
            printed = printed_qos_s(engine, queries)
            assert demand.qos_s(engine, queries) == pytest.approx(printed, rel=0.007)
    assert demand.gaps.median == pytest.approx(115, abs=0.5)
    assert demand.gaps.lower == pytest.approx(56, abs=0.5)
    assert printed_qos_s("other", 3900) is printed_qos_s("tf_ssd", 1) is None


def test_shares_and_means_of_a_study(study: Study, reconstructed: Profile) -> None:
    assert study.policies == ["srr", "be", "synergai"]
    assert (study.seeds, study.experiments) == (2, list(EXPERIMENTS))
    assert study.classes == reconstructed.classes
    for policy in study.policies:
        for experiment in study.experiments:
            shares = [study.class_share(policy, experiment, name) or 0 for name in study.classes]
            assert sum(shares) == pytest.approx(1.0)
            runs = study.of(policy, experiment)
            assert study.mean(policy, experiment, lambda result: result.violations) == (
                sum(run.result.violations for run in runs) / 2
            )
            assert sum(work.queries for work in runs[0].work) == sum(
                job.queries for job in runs[0].jobs
            )
            times = study.distribution(policy, experiment, lambda job: job.end_to_end_s)
            assert times is not None
            assert times.count == 48


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_synergai_has_fewest_violations_and_strict_round_robin_most(
    study: Study, experiment: str
) -> None:
    means = {
        policy: study.mean(policy, experiment, lambda result: result.violations) or 0.0
        for policy in study.policies
    }
    assert means["synergai"] == min(means.values())
    assert means["srr"] == max(means.values())


def test_means_have_confidence_intervals(study: Study) -> None:
    rows = rows_of(a_report(study), "Violations by policy")
    runs = [run.result.violations for run in study.of("be", "DL-FL")]
    half = 12.706 * abs(runs[0] - runs[1]) / 2
    assert rows[1]["DL-FL"] == f"{sum(runs) / 2:.2f} ± {half:.2f}"


def test_report_on_the_thesis_is_marked_and_has_every_figure(
    study: Study, reconstructed: Profile
) -> None:
    report = a_report(study, reconstructed, thesis=True)
    keys = {figure.key for figure in figures_of(report)}
    assert keys == {
        *("figure-7-1", "figure-7-2", "workers", "engines", "overheads"),
        *(f"experiment-{name}" for name in EXPERIMENTS),
    }
    assert report.is_reconstructed
    assert len({section.key for section in report.sections} | keys) == len(report.sections) + len(
        keys
    )


def test_qos_times_of_fast_engines_have_digits() -> None:
    profile = a_profile(qps=1e6)
    study = a_study(profile, policies=("edf",), seeds="1", experiments="DL-FL")
    rows = rows_of(a_report(study, profile), "QoS times")
    assert not [cell for row in rows for cell in row.values() if cell == "0.0"]


def a_profile(*, qps: float = 10.0) -> Profile:
    return Profile(
        new_entry(
            "net",
            "x86",
            qps * threads,
            Configuration(threads),
            model_load_s=1.0,
        )
        for threads in (1, 2)
    )


@pytest.mark.parametrize("policies", [("edf",), ("edf", "synergai")])
def test_small_studies_have_whole_cards(policies: tuple[str, ...]) -> None:
    profile = a_profile()
    study = a_study(profile, policies=policies, seeds="3", experiments="DL-FL")
    report = a_report(study, profile)
    for answer in report.findings.values():
        assert answer.endswith(".")
        assert "nan" not in answer
    assert not report.banner
    assert "thesis" not in {section.key for section in report.sections}


def test_bounds_have_a_card() -> None:
    profile = a_profile()
    study = a_study(profile, policies=("edf",), seeds="3", experiments="DL-FL", bounds="true")
    findings = a_report(study, profile).findings
    assert "No schedule can have fewer violations" in findings["How far from the optimum?"]


class Recorder(EventLog):
    """An event log of a core, which a worker joins at 99 s."""

    def __init__(self, path: Path) -> None:
        profiles = ConfigurationDictionary(a_profile().entries(EngineName("net"), X86))
        settings = SchedulingSettings(policy="edf", mode_switch_s=0.0)
        super().__init__(path, settings, profiles, 0)
        self.core = SchedulerCore(settings, ConfigurationDictionary(profiles))

    def join(self) -> None:
        threads = (Configuration(1), Configuration(2))
        self.handle(events.WorkerJoined(new_worker("w1", X86, ["net"], threads, loaded=())), 99.0)

    def handle(self, event: events.Event, now: float) -> list[events.Assignment]:
        commands = self.core.handle(event, now)
        self.record(event, now, commands)
        return dispatched(commands)


X86 = WorkerClass("x86")


def a_job(name: str, *, deadline: float) -> events.JobArrived:
    return new_job(name, "net", 20, 100.0, deadline=deadline)


def test_recorded_run_is_reported_with_its_worker_classes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Recorder(path) as recorder:
        recorder.join()
        [assignment] = recorder.handle(a_job("late", deadline=103.0), 100.0)
        recorder.handle(events.AssignmentStarted(assignment.id, setup_s=1.0), 102.0)
        recorder.handle(events.AssignmentEnded(assignment.id, 20, Outcome.COMPLETED), 105.0)
        recorder.handle(a_job("lost", deadline=110.0), 106.0)
        recorder.handle(a_job("open", deadline=999.0), 106.0)
        recorder.handle(events.WorkerLeft(WorkerId("w1")), 120.0)
    log = read_log(path)
    assert (log.policy, log.mismatches, log.classes) == ("edf", 0, {"w1": "x86"})
    outcome = outcome_of_log(log, "monday")
    late, lost = outcome.jobs
    assert (late.wait_s, late.end_to_end_s, late.excess_s) == (0.0, 5.0, 2.0)
    assert late.violated
    assert lost.violated
    assert lost.end_to_end_s is None
    [work] = outcome.work
    assert (work.worker_class, work.queries) == ("x86", 20)
    assert work.setup_s + work.run_s == pytest.approx(5.0 + 14.0)
    report = a_report(Study([outcome]))
    assert "Recording monday" in [section.title for section in report.sections]
    assert "demand" not in {section.key for section in report.sections}


def test_logs_of_one_file_name_are_one_experiment(tmp_path: Path) -> None:
    paths = [tmp_path / folder / 'my "day".jsonl' for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        with Recorder(path) as recorder:
            recorder.join()
            recorder.handle(a_job("lost", deadline=110.0), 106.0)
            recorder.handle(events.WorkerLeft(WorkerId("w1")), 120.0)
    study = Study(outcomes_of_logs(paths))
    assert (study.experiments, study.policies, study.seeds) == (["my-day-"], ["edf"], 2)


def test_worker_that_was_ejected_works_again_afterwards(tmp_path: Path) -> None:
    worker_id = WorkerId("w1")
    stuck, again = (
        new_assignment(number, "net", worker_id, 20, job_id=JobId("stuck")) for number in (1, 2)
    )
    with Recorder(tmp_path / "events.jsonl") as log:
        log.join()
        log.record(a_job("stuck", deadline=200.0), 100.0, [events.Dispatch(stuck)])
        log.record(
            events.ProgressChecked(),
            130.0,
            [events.Revoke(stuck.id, worker_id), events.Eject(worker_id, 10.0)],
        )
        log.record(events.ProgressChecked(), 141.0, [events.Dispatch(again)])
        ended = events.AssignmentEnded(again.id, 20, Outcome.COMPLETED)
        log.record(ended, 145.0, [events.Finish(JobId("stuck"))])
    spans = read_log(tmp_path / "events.jsonl").spans
    assert [(each.started, each.ended, each.done) for each in spans] == [
        (100.0, 130.0, 0),
        (141.0, 145.0, 20),
    ]


def test_rejected_job_is_a_violation_whatever_its_deadline(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Recorder(path) as recorder:
        recorder.record(
            a_job("refused", deadline=1e9), 100.0, [events.Reject(JobId("refused"), "no worker")]
        )
    outcome = outcome_of_log(read_log(path), "day")
    assert [job.violated for job in outcome.jobs] == [True]


def test_log_without_an_ended_job_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Recorder(path) as recorder:
        recorder.join()
    with pytest.raises(InvalidInput, match="no job or request of the event log quiet ended"):
        outcome_of_log(read_log(path), "quiet")


def test_study_needs_a_run() -> None:
    with pytest.raises(InvalidInput, match="no run"):
        Study([])
