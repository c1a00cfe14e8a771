"""The table of measurements."""

import dataclasses

import pytest
from msgspec.structs import replace

from profiler.measuring.cli import print_measurements
from profiler.measuring.messages import Measurement
from profiler.measuring.single_stream import SingleStreamResult
from tests.cores import new_entry


@pytest.fixture
def measurement() -> Measurement:
    result = SingleStreamResult(
        validity="VALID", queries=9, qps=9.0, latency_p50_s=1, latency_p90_s=1, latency_p99_s=1
    )
    entry = new_entry("a", "x86", 100.0)
    return Measurement(entry=entry, single_stream=result, logs="", background=0.0)


def test_a_line_below_the_table_says_why_latencies_are_invalid(
    measurement: Measurement, capsys: pytest.CaptureFixture[str]
) -> None:
    result = dataclasses.replace(
        measurement.single_stream, validity="INVALID", invalid_because="few"
    )
    print_measurements([measurement, replace(measurement, single_stream=result)])
    remarks = [line for line in capsys.readouterr().out.splitlines() if "few" in line]
    assert remarks == [f"{measurement.name}: the latencies are invalid for LoadGen: few"]


def test_the_table_shows_the_highest_rate_in_batches(
    measurement: Measurement, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = replace(measurement.entry, batch_qps=(20.0, 45.0, 40.0))
    print_measurements([measurement, replace(measurement, entry=entry)])
    lines = capsys.readouterr().out.splitlines()
    assert "in batches" in lines[0]
    assert " 45 of 4 " in lines[-1]
