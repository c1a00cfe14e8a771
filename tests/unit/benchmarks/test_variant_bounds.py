"""Bounds on the accuracy of requests for engines with variants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.variants.bounds import accuracy_at_most, relative_accuracy_at_most, taut_string
from benchmarks.variants.simulation import Scenario
from synergai.domain import EngineName

ENGINE = EngineName("fashion")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 4.0)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_no_other_path_through_the_corridor_has_more_equal_steps(
    drawn: list[tuple[float, float]], random: object
) -> None:
    lower = [float(each) for each in np.cumsum([step for step, _ in drawn])]
    upper = [low + width for low, (_, width) in zip(lower, drawn, strict=True)]
    upper = [float(each) for each in np.maximum.accumulate(upper)]
    found = taut_string(0.0, lower, upper)
    assert found[-1] == pytest.approx(upper[-1])
    slack = 1e-9
    ends = zip(lower, found, upper, strict=True)
    assert all(low - slack <= at <= high + slack for low, at, high in ends)

    def cost(path: list[float]) -> float:
        return float((np.diff([0.0, *path]) ** 2).sum())

    generator = np.random.default_rng(abs(hash(str(random))) % 2**32)
    for _ in range(20):
        other = [float(generator.uniform(*each)) for each in zip(lower, upper, strict=True)]
        other[-1] = upper[-1]
        share = generator.uniform()
        mixed = [share * a + (1 - share) * b for a, b in zip(other, found, strict=True)]
        assert cost(mixed) >= cost(found) - 1e-7


def scenario(workers: int) -> Scenario:
    """Return a scenario with two variants of one engine."""
    return Scenario(
        name="test",
        fronts={ENGINE: {"large": (0.2, 0.9), "small": (0.05, 0.8)}},
        layout=[frozenset({ENGINE})] * workers,
    )


def test_bound_of_requests_far_apart_is_the_best_accuracy() -> None:
    assert accuracy_at_most(scenario(1), ENGINE, [0.0, 1.0, 2.0]) == pytest.approx(0.9)


def test_bound_of_requests_at_once() -> None:
    # 0.4 s for four requests: 0.1 s each, a third of the way from small to large.
    bound = accuracy_at_most(scenario(1), ENGINE, [0.0, 0.0, 0.0, 0.0])
    assert bound == pytest.approx(0.8 + 0.1 / 3)
    # Sixteen have half of what the small one takes.
    assert accuracy_at_most(scenario(1), ENGINE, [0.0] * 16) == pytest.approx(0.4)
    assert accuracy_at_most(scenario(2), ENGINE, [0.0] * 16) == pytest.approx(0.8)


def test_bound_of_several_engines_shares_each_worker() -> None:
    other = EngineName("other")
    shared = Scenario(
        name="test",
        fronts={
            ENGINE: {"large": (0.2, 0.9), "small": (0.05, 0.45)},
            other: {"large": (0.2, 0.5), "small": (0.05, 0.4)},
        },
        layout=[frozenset({ENGINE, other})],
        deadline_s=0.95,
    )
    arrivals = [(0.0, ENGINE)] * 4 + [(0.01, other)] * 4
    # All small ones take 0.4 s of 1.0 s, rounded outwards: the rest makes the first engine's large.
    assert relative_accuracy_at_most(shared, arrivals) == pytest.approx((4 * 1.0 + 4 * 0.8) / 8)


def test_bounds_of_one_and_of_several_engines_agree() -> None:
    arrivals = [0.05 * number for number in range(20)]
    one = accuracy_at_most(scenario(1), ENGINE, arrivals) / 0.9
    several = relative_accuracy_at_most(scenario(1), [(at, ENGINE) for at in arrivals])
    assert one <= several + 1e-9
    assert several == pytest.approx(one, abs=0.05)
