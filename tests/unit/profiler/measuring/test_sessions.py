"""Order of the profiled sessions."""

import os
from pathlib import Path

import pytest

from profiler.measuring.generators import configurations, sessions_to_measure
from synergai.domain import Configuration
from synergai.errors import InvalidInput, NotFound
from worker_agent.power.controller import PowerMode

FRUGAL = PowerMode(name="frugal", cores=2)
FAST = PowerMode(name="fast", cores=4)


def test_each_mode_is_measured_with_all_thread_counts_before_the_next() -> None:
    assert configurations([1, 4], [FRUGAL, FAST]) == [
        Configuration(1, "frugal"),
        Configuration(1, "fast"),
        Configuration(4, "fast"),
    ]


def test_zero_threads_mean_one_per_core_of_the_mode_or_machine() -> None:
    assert configurations([0, 2], [FRUGAL]) == [Configuration(2, "frugal")]
    assert configurations([0], []) == [Configuration(len(os.sched_getaffinity(0)))]


def test_threads_are_limited_by_pinned_cores() -> None:
    assert configurations([0], [], (2, 3, 5)) == [Configuration(3)]
    assert configurations([0], [FAST], (2, 3, 5)) == [Configuration(3, "fast")]
    with pytest.raises(InvalidInput, match="an engine with 4 threads needs 4 cores, not 3"):
        configurations([4], [FAST], (2, 3, 5))


def test_threads_beyond_every_mode_are_rejected() -> None:
    with pytest.raises(
        InvalidInput, match="no power mode has 8 cores or more for the threads; the largest has 4"
    ):
        configurations([8], [FRUGAL, FAST])


def test_each_variant_is_measured_in_each_configuration(tmp_path: Path) -> None:
    for engine, files in (("plain", ["model"]), ("family", ["full", "int8"])):
        (tmp_path / engine).mkdir()
        for file in files:
            (tmp_path / engine / f"{file}.onnx").write_bytes(b"model")
    tables = [f'[[variants]]\nname = "{n}"\nfile = "{n}.onnx"\n' for n in ("full", "int8")]
    (tmp_path / "family/engine.toml").write_text("".join(tables))

    sessions = sessions_to_measure(tmp_path, [], [1, 2], [FRUGAL])

    assert [(each.engine, str(each.configuration)) for each in sessions] == [
        ("family", "threads=1,mode=frugal,variant=full"),
        ("family", "threads=1,mode=frugal,variant=int8"),
        ("plain", "threads=1,mode=frugal"),
        ("family", "threads=2,mode=frugal,variant=full"),
        ("family", "threads=2,mode=frugal,variant=int8"),
        ("plain", "threads=2,mode=frugal"),
    ]


def test_empty_model_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no usable engine"):
        sessions_to_measure(tmp_path, [], [1], [])
