import pytest

from benchmarks.foresight import BRANCHES, WAITING, Case, drawn_case, figures
from profiler.dictionary.files import load_dictionary
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from profiler.simulator.workload import Profile


@pytest.fixture(scope="module")
def case() -> Case:
    return drawn_case(Profile(load_dictionary(RECONSTRUCTED_PROFILE)), "DH-FH", 11)


def test_futures_of_a_case_begin_alike_and_part_at_arrivals(case: Case) -> None:
    paths = [[job.id for job in future.jobs] for future in case.futures]
    assert len(paths) == BRANCHES[0] * BRANCHES[1]
    distinct = [len({tuple(path[:count]) for path in paths}) for count in range(WAITING, 6)]
    assert distinct == [1, BRANCHES[0], len(paths)]


def test_less_knowledge_never_lowers_a_bound(case: Case) -> None:
    found = figures(Case(case.futures[: BRANCHES[1]]), ["malleable"])
    assert found["clairvoyant"] <= found["no foresight"] + 1e-6
    assert found["no foresight"] <= found["malleable"] + 1e-6


def test_with_one_future_foresight_is_worth_nothing(case: Case) -> None:
    found = figures(Case(case.futures[:1]), [])
    assert found["no foresight"] == pytest.approx(found["clairvoyant"], abs=1e-6)
