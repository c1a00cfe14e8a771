"""What the profiler measures, in which order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from profiler.sessions import configurations, sessions
from synergai.domain import Configuration
from synergai.errors import InvalidInput, NotFound
from worker_agent.power.controller import PowerMode

if TYPE_CHECKING:
    from pathlib import Path

FRUGAL = PowerMode(name="frugal", cores=2)
FAST = PowerMode(name="fast", cores=4)


def test_a_mode_is_measured_with_all_threads_that_it_has_cores_for_before_the_next_one() -> None:
    assert configurations([1, 4], [FRUGAL, FAST]) == [
        Configuration(1, "frugal"),
        Configuration(1, "fast"),
        Configuration(4, "fast"),
    ]


def test_zero_threads_are_one_per_core_of_the_mode_or_machine() -> None:
    assert configurations([0, 2], [FRUGAL]) == [Configuration(2, "frugal")]
    assert configurations([0], []) == [Configuration(len(os.sched_getaffinity(0)))]


def test_engines_that_are_kept_to_cores_have_no_more_threads_than_those() -> None:
    assert configurations([0], [], (2, 3, 5)) == [Configuration(3)]
    assert configurations([0], [FAST], (2, 3, 5)) == [Configuration(3, "fast")]
    with pytest.raises(InvalidInput, match="an engine with 4 threads needs 4 cores, not 3"):
        configurations([4], [FAST], (2, 3, 5))


def test_threads_that_no_mode_has_cores_for_are_refused_with_what_there_is() -> None:
    with pytest.raises(InvalidInput, match="no power mode has cores for 8 threads; the most is 4"):
        configurations([8], [FRUGAL, FAST])


def test_an_empty_model_directory_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no usable engine"):
        sessions(tmp_path, [], [1], [])
