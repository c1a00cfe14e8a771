"""Times of stages, from heads and tails in the dictionary."""

from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from profiler.dictionary.stages import StageTimes
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.errors import NotFound
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import new_entry

ENGINE = EngineName("net")
HERE = WorkerClass("here")
ONE = Configuration(1)
WORKS = (0.2, 0.4, 0.6, 0.8)


def dictionary(**milliseconds: float) -> ConfigurationDictionary:
    return ConfigurationDictionary(
        new_entry(name.replace("_", ".", 1).replace("_", "-"), HERE, 1000 / each)
        for name, each in milliseconds.items()
    )


def times(**milliseconds: float) -> StageTimes:
    return StageTimes(dictionary(**milliseconds), ENGINE, WORKS, HERE, ONE)


def milliseconds(found: StageTimes, first: int, last: int) -> float:
    return found.of(first, last).seconds * 1000


def test_a_stage_is_the_difference_of_heads_and_the_cost_of_its_first_cut() -> None:
    found = times(net=100, net_s0_2=40, net_s2_5=62, net_s0_4=82, net_s4_5=21)
    assert found.costs == pytest.approx([0, 0.002, 0.002, 0.0025, 0.003, 0])
    assert milliseconds(found, 2, 4) == pytest.approx(82 - 40 + 2)
    assert not found.of(2, 4).measured


def test_heads_that_were_not_measured_follow_from_the_work() -> None:
    found = times(net=100, net_s0_2=50, net_s2_5=50)
    assert [each * 1000 for each in found.heads] == pytest.approx(
        [0, 25, 50, 50 + 50 / 3, 50 + 100 / 3, 100]
    )


def test_a_tail_is_predicted_as_what_the_head_leaves_and_the_cost() -> None:
    found = times(net=100, net_s0_2=40, net_s2_5=62)
    assert milliseconds(found, 2, 5) == pytest.approx(62)
    assert milliseconds(found, 0, 5) == pytest.approx(100)
    assert found.of(0, 5).measured


def test_heads_that_do_not_ascend_are_replaced_by_their_mean_so_every_stage_takes_time() -> None:
    found = times(net=100, net_s0_2=62, net_s2_5=44, net_s0_3=58, net_s3_5=48)
    assert found.heads[3] == pytest.approx(0.060)
    assert all(found.of(place, place + 1).seconds > 0.01 for place in range(5))


def test_head_that_takes_as_long_as_the_whole_is_left_out() -> None:
    found = times(net=100, net_s0_2=40, net_s2_5=62, net_s0_4=100, net_s4_5=21)
    assert [each * 1000 for each in found.heads] == pytest.approx([0, 20, 40, 60, 80, 100])


def test_cut_whose_tail_saves_time_costs_other_stages_nothing() -> None:
    found = times(net=100, net_s0_2=40, net_s2_5=58)
    assert milliseconds(found, 2, 4) == pytest.approx(40)
    assert milliseconds(found, 1, 5) == pytest.approx(100 - 20 - 2)
    assert milliseconds(found, 3, 5) == pytest.approx(58 * 2 / 3)


@example(dict.fromkeys((1, 2, 3, 4), (171, 1)))
@given(
    st.dictionaries(
        st.integers(1, 9), st.tuples(st.integers(1, 999), st.integers(1, 999)), min_size=1
    )
)
def test_every_stage_takes_time_however_disturbed_the_measurements_were(
    measured: dict[int, tuple[int, int]],
) -> None:
    known = {f"net_s0_{cut}": float(head) for cut, (head, _) in measured.items()}
    known |= {f"net_s{cut}_10": float(tail) for cut, (_, tail) in measured.items()}
    works = [each / 10 for each in range(1, 10)]
    found = StageTimes(dictionary(net=1000.0, **known), ENGINE, works, HERE, ONE)
    assert all(found.of(first, last).seconds > 0 for first, last in combinations(range(11), 2))


def test_an_entry_of_the_stage_itself_beats_the_prediction() -> None:
    found = times(net=100, net_s0_2=40, net_s2_5=62, net_s1_3=7)
    assert milliseconds(found, 1, 3) == pytest.approx(7)
    assert found.of(1, 3).measured


@pytest.mark.parametrize("known", [{"net_s0_2": 40, "net_s2_5": 62}, {"net": 1, "net_s0_2": 1}])
def test_without_the_whole_or_any_pair_it_says_what_to_measure(known: dict[str, float]) -> None:
    with pytest.raises(NotFound, match="synergai profile --stages --engines net"):
        times(**known)
