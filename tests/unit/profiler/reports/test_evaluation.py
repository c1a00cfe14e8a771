"""The evaluation: statistics by hand, the thesis's own numbers, and small studies."""

from collections.abc import Callable, Iterable

import pytest

from profiler.dictionary.files import load_dictionary
from profiler.reports.evaluation.figures import measure_demand, printed_qos_s
from profiler.reports.evaluation.report import StudyOrigin, evaluate
from profiler.reports.evaluation.study import Study, outcome_of_run
from profiler.reports.page import Report
from profiler.reports.printed import CELLS, EXPERIMENTS, TABLE_7_1, PrintedCell
from profiler.reports.statistics import Factors
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE, SimulatorSettings
from profiler.simulator.sweep import simulate_all
from profiler.simulator.workload import Profile
from synergai.domain import Configuration
from synergai.errors import InvalidInput
from tests.cores import new_entry
from tests.report_blocks import figures_of, rows_of

BASELINES = ("rr", "srr", "lru", "mru", "be")


def a_study(profile: Profile, *, policies: Iterable[str], **options: object) -> Study:
    values = {"policies": ",".join(policies), **options}
    settings = SimulatorSettings.load({name: str(value) for name, value in values.items()}, None)
    return Study(map(outcome_of_run, simulate_all(settings, profile)))


def a_report(study: Study, profile: Profile, *, thesis: bool = False) -> Report:
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


def test_means_have_confidence_intervals(study: Study, reconstructed: Profile) -> None:
    rows = rows_of(a_report(study, reconstructed), "Violations by policy")
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


def test_study_needs_a_run() -> None:
    with pytest.raises(InvalidInput, match="no run"):
        Study([])
