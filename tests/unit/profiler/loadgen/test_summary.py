"""What the logs of LoadGen say of performance runs."""

import json
from pathlib import Path

import pytest

from profiler.loadgen.cli import read_results, read_summary
from synergai.errors import InternalError


def test_results_are_those_of_the_detail_log(tmp_path: Path) -> None:
    path = tmp_path / "mlperf_log_detail.txt"
    values = {
        "effective_scenario": "Server",
        "result_validity": "INVALID",
        "result_completed_samples_per_sec": 212.606,
    }
    lines = [":::MLLOG " + json.dumps({"key": k, "value": v}) for k, v in values.items()]
    path.write_text("\n".join(["a line of another kind", *lines]))
    assert read_results(path) == {
        "result_validity": "INVALID",
        "result_completed_samples_per_sec": 212.606,
    }
    path.write_text(lines[0])
    with pytest.raises(InternalError, match="missing or incomplete"):
        read_results(path)


def test_missing_logs_are_named(tmp_path: Path) -> None:
    for read in (read_results, read_summary):
        with pytest.raises(InternalError, match=r"nothing\.txt is missing or incomplete"):
            read(tmp_path / "nothing.txt")
