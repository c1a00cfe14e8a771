"""Parsing of summaries that LoadGen wrote."""

from pathlib import Path

import pytest

from profiler.loadgen.cli import LoadMeasurement, _print_measurement, parse_summary, read_summary
from profiler.loadgen.loadgen_settings import LoadgenSettings
from profiler.loadgen.outcome import RunCounts
from synergai.errors import InvalidInput

VALID = """\
================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : SingleStream
Mode     : PerformanceOnly
90.0th percentile latency (ns) : 2120894
Result is : VALID
  Min duration satisfied : Yes
  Min queries satisfied : Yes
  Early stopping satisfied: Yes
Early Stopping Result:
 * Processed at least 64 queries (239).
 * Would discard 12 highest latency queries.
 * Early stopping 90.0th percentile estimate: 2145126
 * Not enough queries processed for 99.0th percentile
 early stopping estimate (would need to process at
 least 662 total queries).

================================================
Additional Stats
================================================
QPS w/ loadgen overhead         : 475.13
QPS w/o loadgen overhead        : 475.71

Min latency (ns)                : 2083617
Max latency (ns)                : 2255625
Mean latency (ns)               : 2102107
50.00 percentile latency (ns)   : 2095350
90.00 percentile latency (ns)   : 2120894
95.00 percentile latency (ns)   : 2147680
97.00 percentile latency (ns)   : 2179634
99.00 percentile latency (ns)   : 2225957
99.90 percentile latency (ns)   : 2255625

================================================
Test Parameters Used
================================================
samples_per_query : 1
target_qps : 500
min_duration (ms): 500
performance_sample_count : 64

No warnings encountered during test.

No errors encountered during test.
"""

INVALID = """\
================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : SingleStream
Mode     : PerformanceOnly
90.0th percentile latency (ns) : 5150250
Result is : INVALID
  Min duration satisfied : Yes
  Min queries satisfied : Yes
  Early stopping satisfied: NO
Recommendations:
Early Stopping Result:
 * Only processed 10 queries.
 * Need to process at least 64 queries for early stopping.

================================================
Additional Stats
================================================
QPS w/ loadgen overhead         : 194.23
QPS w/o loadgen overhead        : 194.42

Min latency (ns)                : 5120011
Max latency (ns)                : 5150250
Mean latency (ns)               : 5143380
50.00 percentile latency (ns)   : 5146111
"""


def test_valid_summary_is_parsed() -> None:
    summary = parse_summary(VALID)
    assert (summary.scenario, summary.mode) == ("SingleStream", "PerformanceOnly")
    assert summary.is_valid
    assert summary.unmet == ()
    assert summary.qps_with_overhead == 475.13
    assert summary.qps == 475.71
    assert (summary.min_s, summary.mean_s, summary.max_s) == (0.002083617, 0.002102107, 0.002255625)
    assert list(summary.percentiles_s) == [50.0, 90.0, 95.0, 97.0, 99.0, 99.9]
    assert summary.percentiles_s[90.0] == 0.002120894


def test_invalid_run_is_reported_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    counts = RunCounts(
        inputs="2 samples", queries=10, failed=0, expired=0, rejected=0, late=0, seconds=1.0
    )
    settings = LoadgenSettings.load({"engine": "identity"})
    _print_measurement(
        settings, LoadMeasurement(summary=parse_summary(INVALID), counts=counts, logs=Path("logs"))
    )
    assert "Early stopping is not satisfied: too few queries" in capsys.readouterr().out


def test_summary_of_an_invalid_run_names_unmet_conditions() -> None:
    summary = parse_summary(INVALID)
    assert not summary.is_valid
    assert summary.unmet == ("Early stopping",)


@pytest.mark.parametrize("fact", ["Scenario", "Result is", "QPS w/o", "Mean latency"])
def test_incomplete_summary_is_rejected(fact: str) -> None:
    text = "\n".join(line for line in VALID.splitlines() if not line.startswith(fact))
    with pytest.raises(InvalidInput, match="LoadGen summary is incomplete"):
        parse_summary(text)


def test_summary_with_a_malformed_figure_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="not a number"):
        parse_summary(VALID.replace("475.13", "many"))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*nothing\.txt"):
        read_summary(tmp_path / "nothing.txt")
