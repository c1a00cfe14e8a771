import pytest

from benchmarks.foresight import BRANCHES, WAITING, Case, drawn_case, figures, informed, parts
from benchmarks.violation_bounds import rate_and_setup_s
from profiler.dictionary.files import load_dictionary
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from profiler.simulator.workload import EXPERIMENTS, Profile, Workload, draw


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile(load_dictionary(RECONSTRUCTED_PROFILE))


@pytest.fixture(scope="module")
def case(profile: Profile) -> Case:
    return drawn_case(profile, "DH-FH", 11)


@pytest.fixture(scope="module")
def workload(profile: Profile) -> Workload:
    return draw(profile, EXPERIMENTS["DH-FH"], 2011, count=8)


def test_futures_of_a_case_begin_alike_and_part_at_arrivals(case: Case) -> None:
    paths = [[job.id for job in future.jobs] for future in case.futures]
    assert len(paths) == BRANCHES[0] * BRANCHES[1]
    distinct = [len({tuple(path[:count]) for path in paths}) for count in range(WAITING, 6)]
    assert distinct == [1, BRANCHES[0], len(paths)]


def test_less_knowledge_never_lowers_a_bound(case: Case) -> None:
    found = figures(Case(case.futures[:2]), ["malleable"])
    assert found["clairvoyant"] <= found["no foresight"] + 1e-6
    assert found["no foresight"] <= found["malleable"] + 1e-6


def test_with_one_future_foresight_is_worth_nothing(case: Case) -> None:
    found = figures(Case(case.futures[:1]), [])
    assert found["no foresight"] == pytest.approx(found["clairvoyant"], abs=1e-6)


def test_an_informed_scheduler_is_told_the_actual_times(workload: Workload) -> None:
    known = informed(workload)
    assert set(known.factors.values()) == {1.0} != set(workload.factors.values())
    for job, same in zip(workload.jobs, known.jobs, strict=True):
        for name in workload.profile.classes:
            expected = rate_and_setup_s(workload, job, name)
            assert rate_and_setup_s(known, same, name) == pytest.approx(expected)


def test_what_a_policy_lacks_lies_between_it_and_the_bound(workload: Workload) -> None:
    found = parts(workload)
    assert found["bound"] <= found["hindsight"]
    assert found["hindsight"] <= min(found["longer search"], found["actual times"])
    assert found["actual times"] < found["malleable"]
