"""LoadGen settings and test runs.

Imports LoadGen; import it only in processes that run LoadGen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import mlperf_loadgen

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from profiler.loadgen.loadgen_settings import LoadgenSettings

# The seeds of MLPerf's mlperf.conf, for comparable runs.
QSL_SEED: Final = 2085463073848966840
SAMPLE_INDEX_SEED: Final = 2747215439041700203
SCHEDULE_SEED: Final = 16159082839903944936
_MODES: Final = {
    "performance": mlperf_loadgen.TestMode.PerformanceOnly,
    "accuracy": mlperf_loadgen.TestMode.AccuracyOnly,
}


def run_settings(
    queries: int, min_duration_s: float, fastest_s: float
) -> mlperf_loadgen.TestSettings:
    """Return LoadGen's settings of a run in the Single Stream scenario.

    Args:
        fastest_s: latency of the fastest query seen so far, in seconds.
    """
    settings = mlperf_loadgen.TestSettings()
    settings.scenario = mlperf_loadgen.TestScenario.SingleStream
    settings.mode = mlperf_loadgen.TestMode.PerformanceOnly
    settings.min_query_count = queries
    settings.min_duration_ms = round(min_duration_s * 1000)
    # LoadGen generates its queries in advance by this figure: if they run out before the minimum
    # duration, the run is invalid.
    settings.single_stream_expected_latency_ns = max(1, round(fastest_s * 1e9 / 2))
    settings.qsl_rng_seed = QSL_SEED
    settings.sample_index_rng_seed = SAMPLE_INDEX_SEED
    settings.schedule_rng_seed = SCHEDULE_SEED
    return settings


def scenario_settings(settings: LoadgenSettings, fastest_s: float) -> mlperf_loadgen.TestSettings:
    """Return LoadGen's settings of a run in any scenario.

    LoadGen reads MLPerf's own settings with the first ``user.conf`` of a process only.

    Args:
        fastest_s: latency in seconds of the fastest query seen so far, sent one at a time.

    Raises:
        InvalidInput: the ``user.conf`` cannot be read.
    """
    result = run_settings(settings.queries, settings.min_duration, fastest_s)
    result.scenario = getattr(mlperf_loadgen.TestScenario, settings.scenario)
    result.mode = _MODES[settings.mode]
    # LoadGen generates its queries in advance by these figures: if they run out before the minimum
    # duration, the run is invalid.
    result.multi_stream_expected_latency_ns = max(1, round(fastest_s * 1e9 / 2))
    result.offline_expected_qps = settings.rate or 2 / fastest_s
    if settings.rate is not None:
        result.server_target_qps = settings.rate
    if settings.qos_ms is not None:
        result.server_target_latency_ns = round(settings.qos_ms * 1e6)
    conf = settings.user_conf
    if conf and result.FromConfig(str(conf), settings.engine, settings.scenario):
        raise InvalidInput(f"LoadGen cannot read {conf}: name a user.conf with --user-conf")
    return result


def log_settings(output: Path) -> mlperf_loadgen.LogSettings:
    settings = mlperf_loadgen.LogSettings()
    settings.enable_trace = False
    files = mlperf_loadgen.LogOutputSettings()
    files.outdir = str(output)
    settings.log_output = files
    return settings


def run_test(
    issue: Callable[[list[mlperf_loadgen.QuerySample]], None],
    settings: mlperf_loadgen.TestSettings,
    logs: mlperf_loadgen.LogSettings,
    *,
    count: int,
    performance_count: int,
    load: Callable[[Sequence[int]], None] | None = None,
    unload: Callable[[Sequence[int]], None] | None = None,
) -> None:
    """Run LoadGen's test on this thread until it ends.

    Args:
        issue: called with each query; every sample must be completed eventually.
        load: loads samples before they are issued.
    """

    def no_op(*_: object) -> None:
        pass

    under_test = mlperf_loadgen.ConstructSUT(issue, no_op)  # no query is held back for a flush
    samples = mlperf_loadgen.ConstructQSL(count, performance_count, load or no_op, unload or no_op)
    try:
        mlperf_loadgen.StartTestWithLogSettings(under_test, samples, settings, logs)
    finally:
        mlperf_loadgen.DestroyQSL(samples)
        mlperf_loadgen.DestroySUT(under_test)
