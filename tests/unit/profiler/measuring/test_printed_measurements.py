"""The table of measurements."""

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from profiler.dictionary.origins import EngineOrigins
from profiler.measuring.cli import print_measurements
from profiler.measuring.messages import Measurement
from profiler.measuring.single_stream import SingleStreamResult
from synergai.profiles.dictionary import DISTURBED
from tests.cores import new_entry


@pytest.fixture
def measurement() -> Measurement:
    result = SingleStreamResult(
        validity="VALID", queries=9, qps=9.0, latency_p50_s=1, latency_p90_s=1, latency_p99_s=1
    )
    entry = new_entry("a", "x86", 100.0)
    return Measurement(entry=entry, single_stream=result, logs="", background=0.0)


def test_a_line_below_the_table_says_why_latencies_are_invalid(
    measurement: Measurement, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = dataclasses.replace(
        measurement.single_stream, validity="INVALID", invalid_because="few"
    )
    measured = [measurement, replace(measurement, single_stream=result)]
    print_measurements(measured, EngineOrigins(tmp_path))
    remarks = [line for line in capsys.readouterr().out.splitlines() if "few" in line]
    assert remarks == [f"{measurement.name}: the latencies are invalid for LoadGen: few"]


def test_the_table_says_which_entries_are_disturbed(
    measurement: Measurement, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = replace(measurement.entry, label=DISTURBED)
    print_measurements([replace(measurement, entry=entry)], EngineOrigins(tmp_path))
    heading, _, row = capsys.readouterr().out.splitlines()
    assert "QPS" in heading
    assert "disturbed" in row
