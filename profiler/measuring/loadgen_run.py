"""A Single Stream run of MLPerf LoadGen, and its detail log.

Imports LoadGen; import it only in processes that run LoadGen.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import mlperf_loadgen as loadgen
import numpy as np

from profiler.loadgen.mlperf import log_settings, run_settings, run_test
from profiler.measuring.single_stream import SingleStreamResult
from synergai.errors import InternalError
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DETAIL_FILE: Final = "mlperf_log_detail.txt"
_MARK: Final = ":::MLLOG "
_LEAST_QUERIES: Final = re.compile(r"Need to process at least (\d+) queries")


def run_loadgen(
    issue: Callable[[int], object],
    *,
    samples: int,
    queries: int,
    min_duration_s: float,
    fastest_s: float,
    report: Callable[[int], object],
    output: Path,
) -> SingleStreamResult:
    """Run LoadGen's test, with its log files in `output`."""
    response = np.zeros(1, np.float32)
    address, size = response.ctypes.data, response.nbytes
    done = 0

    def issue_all(wanted: list[loadgen.QuerySample]) -> None:
        nonlocal done
        for sample in wanted:
            issue(sample.index)
            loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, address, size)])
            done += 1
        report(done)

    run_test(
        issue_all,
        run_settings(queries, min_duration_s, fastest_s),
        log_settings(output),
        count=samples,
        performance_count=samples,
    )
    return read_detail_log(output / DETAIL_FILE)


def read_detail_log(path: Path) -> SingleStreamResult:
    """Read the result from a detail log file."""
    try:
        return parse_detail_log(path.read_text("utf-8", "replace"))
    except (OSError, ValueError, KeyError) as error:
        raise InternalError(f"LoadGen's log {path} is missing or incomplete") from error


def parse_detail_log(text: str) -> SingleStreamResult:
    """Parse the text of a detail log."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith(_MARK):
            entry = json.loads(line.removeprefix(_MARK))
            found[entry["key"]] = entry["value"]
    validity = str(found["result_validity"])
    return SingleStreamResult(
        validity=validity,
        queries=int(found["result_query_count"]),
        qps=float(found["result_qps_without_loadgen_overhead"]),
        latency_p50_s=float(found["result_50.00_percentile_latency_ns"]) / 1e9,
        latency_p90_s=float(found["result_90.00_percentile_latency_ns"]) / 1e9,
        latency_p99_s=float(found["result_99.00_percentile_latency_ns"]) / 1e9,
        invalid_because="" if validity == "VALID" else _unmet_rule(found),
    )


def _unmet_rule(found: dict[str, Any]) -> str:
    """Return the rule of LoadGen that a run does not meet, and what to do."""
    if not found.get("early_stopping_met", True):
        least = _LEAST_QUERIES.search(str(found.get("early_stopping_result", "")))
        return (
            f"there were {counted(int(found['result_query_count']), 'query')}, and LoadGen's early "
            f"stopping needs {least[1] if least else 'more'}: raise --queries or --min-duration"
        )
    if not found.get("result_min_duration_met", True):
        return "LoadGen had no queries left before the minimum duration: measure it again"
    return "its log has the reason"
