"""LoadGen settings of a run, from ours.

Imports LoadGen; import it only in the process that runs LoadGen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import mlperf_loadgen

from synergai.loadgen.mlperf import run_settings

if TYPE_CHECKING:
    from synergai.loadgen.loadgen_settings import LoadgenSettings

_MODES: Final = {
    "performance": mlperf_loadgen.TestMode.PerformanceOnly,
    "accuracy": mlperf_loadgen.TestMode.AccuracyOnly,
}


def scenario_settings(settings: LoadgenSettings, fastest_s: float) -> mlperf_loadgen.TestSettings:
    """Return LoadGen's settings of a run.

    Args:
        fastest_s: latency in seconds of the fastest query seen so far, sent one at a time.
    """
    result = run_settings(settings.queries, settings.min_duration, fastest_s)
    result.scenario = getattr(mlperf_loadgen.TestScenario, settings.scenario)
    result.mode = _MODES[settings.mode]
    result.multi_stream_samples_per_query = settings.samples_per_query
    # LoadGen generates its queries in advance by these figures: if they run out before the minimum
    # duration, the run is invalid.
    result.multi_stream_expected_latency_ns = max(1, round(fastest_s * 1e9 / 2))
    result.offline_expected_qps = settings.rate or 2 / fastest_s
    if settings.rate is not None:
        result.server_target_qps = settings.rate
    if settings.qos_ms is not None:
        result.server_target_latency_ns = round(settings.qos_ms * 1e6)
    return result
