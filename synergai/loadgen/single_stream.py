"""How MLPerf LoadGen is told to run Single Stream: the next query when the last is complete.

Imports LoadGen, and is therefore for the processes alone that run it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import mlperf_loadgen

if TYPE_CHECKING:
    from pathlib import Path

# The seeds of MLPerf's mlperf.conf, so that runs are comparable with others'.
QSL_SEED: Final = 2085463073848966840
SAMPLE_INDEX_SEED: Final = 2747215439041700203
SCHEDULE_SEED: Final = 16159082839903944936


def run_settings(
    queries: int, min_duration_s: float, fastest_s: float
) -> mlperf_loadgen.TestSettings:
    """The settings of a run.

    Args:
        queries: to be issued at least.
        min_duration_s: for which queries are issued at least.
        fastest_s: what the fastest query is known to have taken.
    """
    settings = mlperf_loadgen.TestSettings()
    settings.scenario = mlperf_loadgen.TestScenario.SingleStream
    settings.mode = mlperf_loadgen.TestMode.PerformanceOnly
    settings.min_query_count = queries
    settings.min_duration_ms = round(min_duration_s * 1000)
    # LoadGen prepares its queries by this figure and does not prepare more: if they run out
    # before the time is over, the run is invalid.
    settings.single_stream_expected_latency_ns = max(1, round(fastest_s * 1e9 / 2))
    settings.qsl_rng_seed = QSL_SEED
    settings.sample_index_rng_seed = SAMPLE_INDEX_SEED
    settings.schedule_rng_seed = SCHEDULE_SEED
    return settings


def log_settings(output: Path) -> mlperf_loadgen.LogSettings:
    """LoadGen's log files go below `output`."""
    settings = mlperf_loadgen.LogSettings()
    settings.enable_trace = False
    files = mlperf_loadgen.LogOutputSettings()
    files.outdir = str(output)
    settings.log_output = files
    return settings
