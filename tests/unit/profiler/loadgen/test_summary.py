"""What the detail logs of LoadGen say of performance runs."""

import json
from pathlib import Path

import pytest

from profiler.loadgen.cli import LoadMeasurement, Summary, _print_measurement, read_summary
from profiler.loadgen.loadgen_settings import LoadgenSettings
from profiler.loadgen.outcome import RunCounts
from synergai.errors import InternalError

VALID = {
    "effective_scenario": "SingleStream",
    "effective_test_mode": "PerformanceOnly",
    "result_validity": "VALID",
    "result_min_duration_met": True,
    "result_min_queries_met": True,
    "early_stopping_met": True,
    "result_query_count": 156,
    "result_qps_with_loadgen_overhead": 765.805,
    "result_qps_without_loadgen_overhead": 769.627,
    "result_min_latency_ns": 1082550,
    "result_max_latency_ns": 8692744,
    "result_mean_latency_ns": 1299331,
    "result_50.00_percentile_latency_ns": 1111122,
    "result_90.00_percentile_latency_ns": 1132514,
    "result_95.00_percentile_latency_ns": 2582580,
    "result_97.00_percentile_latency_ns": 3945115,
    "result_99.00_percentile_latency_ns": 6946789,
    "result_99.90_percentile_latency_ns": 8692744,
}

INVALID = {
    "effective_scenario": "Server",
    "effective_test_mode": "PerformanceOnly",
    "result_validity": "INVALID",
    "result_perf_constraints_met": True,
    "result_min_duration_met": True,
    "result_min_queries_met": True,
    "early_stopping_met": False,
    "result_query_count": 44,
    "result_scheduled_samples_per_sec": 214.608,
    "result_completed_samples_per_sec": 212.606,
    "result_min_latency_ns": 1163387,
    "result_max_latency_ns": 5462381,
    "result_mean_latency_ns": 2131079,
    "result_50.00_percentile_latency_ns": 1296752,
}


def summary_of(folder: Path, values: dict[str, object]) -> Summary:
    path = folder / "mlperf_log_detail.txt"
    lines = [":::MLLOG " + json.dumps({"key": k, "value": v}) for k, v in values.items()]
    path.write_text("\n".join(["a line of another kind", *lines]))
    return read_summary(path)


def test_valid_log_gives_the_figures_in_seconds(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, VALID)
    assert (summary.scenario, summary.mode) == ("SingleStream", "PerformanceOnly")
    assert summary.is_valid
    assert summary.unmet == ()
    assert (summary.qps_with_overhead, summary.qps) == (765.805, 769.627)
    assert (summary.samples_per_second, summary.scheduled_per_second) == (None, None)
    assert (summary.min_s, summary.mean_s, summary.max_s) == (0.00108255, 0.001299331, 0.008692744)
    assert list(summary.percentiles_s) == [50.0, 90.0, 95.0, 97.0, 99.0, 99.9]
    assert summary.percentiles_s[90.0] == 0.001132514


def test_invalid_run_is_reported_with_unmet_conditions_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = summary_of(tmp_path, INVALID)
    assert not summary.is_valid
    assert summary.unmet == ("Early stopping",)
    assert (summary.samples_per_second, summary.scheduled_per_second) == (212.606, 214.608)
    counts = RunCounts(
        inputs="2 samples", queries=10, failed=0, expired=0, rejected=0, late=0, seconds=1.0
    )
    settings = LoadgenSettings.load({"engine": "identity"})
    _print_measurement(settings, LoadMeasurement(summary=summary, counts=counts, logs=tmp_path))
    assert "Early stopping is not satisfied: too few queries" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("effective_scenario", None),
        ("result_validity", None),
        ("result_mean_latency_ns", None),
        ("result_mean_latency_ns", "many"),
    ],
)
def test_incomplete_or_malformed_log_is_an_internal_fault(
    tmp_path: Path, key: str, value: str | None
) -> None:
    values = {name: each for name, each in VALID.items() if name != key}
    with pytest.raises(InternalError, match="missing or incomplete"):
        summary_of(tmp_path, values if value is None else {**values, key: value})


def test_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=r"nothing\.txt is missing or incomplete"):
        read_summary(tmp_path / "nothing.txt")
