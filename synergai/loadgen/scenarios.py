"""LoadGen settings of a run, from ours and a user.conf.

Imports LoadGen; import it only in the process that runs LoadGen.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import mlperf_loadgen

from synergai.errors import InvalidInput
from synergai.loadgen.mlperf import run_settings

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.loadgen.loadgen_settings import LoadgenSettings

_MODES: Final = {
    "performance": mlperf_loadgen.TestMode.PerformanceOnly,
    "accuracy": mlperf_loadgen.TestMode.AccuracyOnly,
}


def scenario_settings(settings: LoadgenSettings, fastest_s: float) -> mlperf_loadgen.TestSettings:
    """Return LoadGen's settings of a run.

    Without a user.conf, our settings override LoadGen's defaults. With one, MLPerf's mlperf.conf
    applies first, then that file, then our settings if they were given explicitly.

    Args:
        fastest_s: latency in seconds of the fastest query seen so far, sent one at a time.
    """
    result = run_settings(settings.queries, settings.min_duration, fastest_s)
    if settings.user_conf is not None:
        # LoadGen reads mlperf.conf only at the first call of FromConfig in a process.
        result = mlperf_loadgen.TestSettings()
        _read(result, settings.user_conf, settings.mlperf_model or settings.engine, settings)
    given = settings.given if settings.user_conf is not None else set(_OURS)
    for name in _OURS:
        if name in given:
            _apply(result, name, settings, fastest_s)
    result.scenario = getattr(mlperf_loadgen.TestScenario, settings.scenario)
    result.mode = _MODES[settings.mode]
    return result


_OURS: Final = ("queries", "min_duration", "rate", "qos_ms", "samples_per_query")


def _apply(
    result: mlperf_loadgen.TestSettings, name: str, settings: LoadgenSettings, fastest_s: float
) -> None:
    """Apply one of our settings."""
    match name:
        case "queries":
            result.min_query_count = settings.queries
        case "min_duration":
            result.min_duration_ms = round(settings.min_duration * 1e3)
        case "rate":
            _apply_rate(result, settings, fastest_s)
        case "qos_ms" if settings.qos_ms is not None:
            result.server_target_latency_ns = round(settings.qos_ms * 1e6)
        case "samples_per_query":
            result.multi_stream_samples_per_query = settings.samples_per_query


def _apply_rate(
    result: mlperf_loadgen.TestSettings, settings: LoadgenSettings, fastest_s: float
) -> None:
    # LoadGen generates its queries in advance by these figures: if they run out before the minimum
    # duration, the run is invalid.
    result.multi_stream_expected_latency_ns = max(1, round(fastest_s * 1e9 / 2))
    result.offline_expected_qps = settings.rate or 2 / fastest_s
    if settings.rate is not None:
        result.server_target_qps = settings.rate


def _read(
    result: mlperf_loadgen.TestSettings, path: Path, model: str, settings: LoadgenSettings
) -> None:
    code = result.FromConfig(str(path), model, settings.scenario)
    if code == -errno.ENOENT:
        raise InvalidInput(f"cannot read {path}")
    if code:
        raise InvalidInput(
            f"{path} is not a user.conf of LoadGen; its lines are MODEL.SCENARIO.KEY = VALUE"
        )
