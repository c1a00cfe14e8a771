"""Predicted times of engines on worker classes without a profile of them."""

import pytest

from profiler.dictionary.files import load_dictionary
from profiler.dictionary.stages import PredictedTimes
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from synergai.domain import EngineName, WorkerClass
from tests.cores import new_entry

NET, OTHER = EngineName("net"), EngineName("other")
BOARD, CLOUD = WorkerClass("board"), WorkerClass("cloud")


def times(*known: tuple[str, str, float]) -> PredictedTimes:
    return PredictedTimes([new_entry(name, of, 1 / each) for name, of, each in known])


def test_class_is_as_much_slower_as_for_other_engines() -> None:
    found = times((NET, CLOUD, 0.1), (OTHER, CLOUD, 0.02), (OTHER, BOARD, 0.1))
    assert found.seconds(NET, BOARD) == pytest.approx(0.5)


def test_class_without_any_profile_is_like_the_others() -> None:
    found = times((NET, CLOUD, 0.1), (NET, "edge", 0.4))
    assert found.seconds(NET, BOARD) == pytest.approx(0.2)


def test_engine_without_any_profile_is_not_predicted() -> None:
    assert times((OTHER, CLOUD, 0.1)).seconds(NET, CLOUD) is None


def test_error_is_that_of_the_known_times_without_themselves() -> None:
    found = times((NET, CLOUD, 0.1), (NET, BOARD, 0.2), (OTHER, CLOUD, 1.0), (OTHER, BOARD, 2.0))
    assert found.median_error() == pytest.approx(0.0)
    assert times((NET, CLOUD, 0.1)).median_error() is None


def test_shipped_profiles_are_predicted_within_a_third_at_the_median() -> None:
    error = PredictedTimes(load_dictionary(RECONSTRUCTED_PROFILE)).median_error()
    assert error is not None
    assert error <= 0.35
