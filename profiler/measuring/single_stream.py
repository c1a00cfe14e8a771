"""MLPerf's Single Stream scenario: queries one at a time, each timed.

MLPerf LoadGen runs it where it is installed, else the timer in this module, which computes the
same figures in the same way. Neither says anything about the QPS of a dictionary's entry, which is
measured on ranges of queries.
"""

from __future__ import annotations

import random
import re
import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from profiler.loadgen.outcome import DETAIL_FILE, incomplete_log, read_detail_log
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import mlperf_loadgen as loadgen

_SEED: Final = 2747215439041700203
"""Of the order of samples, so that runs are comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleStreamResult:
    """Result of a Single Stream run.

    Attributes:
        validity: ``VALID`` or ``INVALID``, by LoadGen's rules; empty without LoadGen.
        qps: the inverse of the mean latency (LoadGen's "QPS w/o loadgen overhead").
        invalid_because: the rule that was not met, and what to do; empty if it is valid.
    """

    validity: str
    queries: int
    qps: float
    latency_p50_s: float
    latency_p90_s: float
    latency_p99_s: float
    invalid_because: str = ""


def time_queries(
    issue: Callable[[int], object],
    *,
    samples: int,
    queries: int,
    min_duration_s: float,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> SingleStreamResult:
    """Issue queries one after another on random samples, and time them.

    Args:
        issue: runs the query on the sample with this index.
        clock: monotonic clock in nanoseconds.
    """
    order = random.Random(_SEED)
    latencies = array("q")
    began = clock()
    ended = began
    while len(latencies) < queries or ended - began < min_duration_s * 1e9:
        sample = order.randrange(samples)
        issued = clock()
        issue(sample)
        ended = clock()
        latencies.append(ended - issued)
    return summarise(latencies)


def summarise(latencies_ns: Sequence[int]) -> SingleStreamResult:
    """Return the figures of queries as LoadGen computes them."""
    in_order = sorted(latencies_ns)
    p50_s, p90_s, p99_s = (in_order[len(in_order) * p // 100] / 1e9 for p in (50, 90, 99))
    return SingleStreamResult(
        validity="",
        queries=len(in_order),
        qps=1e9 * len(in_order) / max(1, sum(in_order)),
        latency_p50_s=p50_s,
        latency_p90_s=p90_s,
        latency_p99_s=p99_s,
    )


_LEAST_QUERIES: Final = re.compile(r"Need to process at least (\d+) queries")


def run_loadgen(
    issue: Callable[[int], object],
    *,
    samples: int,
    queries: int,
    min_duration_s: float,
    fastest_s: float,
    output: Path,
) -> SingleStreamResult:
    """Run LoadGen's test, with its log files in `output`."""
    # It is not installed everywhere.
    import mlperf_loadgen as loadgen

    from profiler.loadgen.mlperf import log_settings, run_settings, run_test

    response = np.zeros(1, np.float32)
    address, size = response.ctypes.data, response.nbytes

    def issue_all(wanted: list[loadgen.QuerySample]) -> None:
        for sample in wanted:
            issue(sample.index)
            loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, address, size)])

    run_test(
        issue_all,
        run_settings(queries, min_duration_s, fastest_s),
        log_settings(output),
        count=samples,
        performance_count=samples,
    )
    return read_result(output / DETAIL_FILE)


def read_result(path: Path) -> SingleStreamResult:
    found = read_detail_log(path)
    try:
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
    except KeyError:
        raise incomplete_log(path) from None


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
