"""A Single Stream run of MLPerf LoadGen.

Imports LoadGen; import it only in processes that run LoadGen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlperf_loadgen as loadgen
import numpy as np

from profiler.loadgen_log import DETAIL_FILE, read_detail_log
from synergai.loadgen.mlperf import log_settings, run_settings, run_test

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from profiler.single_stream import SingleStreamResult


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
    """Run LoadGen's test, with its log files in `output`.

    Args:
        issue: runs the query on the sample with this index.
        fastest_s: latency of the fastest query seen so far, in seconds.
    """
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
