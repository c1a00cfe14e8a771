"""Times of stages from the dictionary, by worker class."""

import math

import numpy as np
import pytest

from profiler.dictionary.stages import class_times
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.errors import NotFound
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from tests.cores import new_entry

ENGINE = EngineName("net")
CLASS = WorkerClass("agx")
UNKNOWN = math.inf
ONE, TWO = Configuration(1), Configuration(2)


def entry(engine: str, configuration: Configuration, seconds: float) -> ProfileEntry:
    return new_entry(engine, CLASS, 1 / seconds, configuration)


def test_stages_have_the_times_of_the_fastest_configuration_that_was_measured() -> None:
    dictionary = ConfigurationDictionary(
        [
            entry("net", ONE, 8.0),
            entry("net.s0-2", ONE, 3.0),
            entry("net.s2-4", ONE, 6.0),
            entry("net", TWO, 5.0),
        ]
    )
    times = class_times(dictionary, ENGINE, CLASS, [0.2, 0.4, 0.9], [2])
    assert np.allclose(times.seconds, [[UNKNOWN, 3, 5], [UNKNOWN, UNKNOWN, 6], [UNKNOWN] * 3])
    assert (times.whole, times.staged) == (TWO, ONE)


def test_stages_of_unknown_times_take_forever() -> None:
    dictionary = ConfigurationDictionary([entry("net", ONE, 8.0)])
    times = class_times(dictionary, ENGINE, CLASS, [0.5], [1])
    assert np.allclose(times.seconds[0], [UNKNOWN, UNKNOWN, 8])
    assert times.staged is None


def test_class_without_an_entry_of_the_engine_is_refused() -> None:
    with pytest.raises(NotFound, match="'synergai profile --engines net'"):
        class_times(ConfigurationDictionary(), ENGINE, CLASS, [], [])
