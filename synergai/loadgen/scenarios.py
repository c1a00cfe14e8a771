"""What LoadGen is told of a run: its scenario's own settings, from ours and from a user.conf.

Imports LoadGen, and is therefore for the process alone that runs it.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import mlperf_loadgen

from synergai.errors import InvalidInput
from synergai.loadgen.single_stream import run_settings

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.loadgen.settings import LoadgenSettings

_MODES: Final = {
    "performance": mlperf_loadgen.TestMode.PerformanceOnly,
    "accuracy": mlperf_loadgen.TestMode.AccuracyOnly,
}


def scenario_settings(settings: LoadgenSettings, fastest_s: float) -> mlperf_loadgen.TestSettings:
    """The settings of a run.

    Without a user.conf all that is not ours is LoadGen's default. With one, MLPerf's own
    mlperf.conf comes first, then that file, and of ours only what was given and not left to its
    default.

    Args:
        settings: ours.
        fastest_s: what the fastest query is known to have taken, one at a time.

    Raises:
        InvalidInput: the user.conf cannot be read, or is none.
    """
    result = run_settings(settings.queries, settings.min_duration, fastest_s)
    if settings.user_conf is not None:
        # LoadGen reads mlperf.conf at the first call of FromConfig in a process, and never again.
        result = mlperf_loadgen.TestSettings()
        _read(result, settings.user_conf, settings.mlperf_model or settings.engine, settings)
    given = settings.model_fields_set if settings.user_conf is not None else set(_OURS)
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
    """Set what one of our settings means to LoadGen."""
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
    # LoadGen prepares queries by the expected figure and does not prepare more: if they run out
    # before the time is over, the run is invalid.
    result.multi_stream_expected_latency_ns = max(1, round(fastest_s * 1e9 / 2))
    result.offline_expected_qps = settings.rate or 2 / fastest_s
    if settings.rate is not None:
        result.server_target_qps = settings.rate


def _read(
    result: mlperf_loadgen.TestSettings, path: Path, model: str, settings: LoadgenSettings
) -> None:
    code = result.FromConfig(str(path), model, settings.scenario)
    if code == -errno.ENOENT:
        raise InvalidInput(f"{path} cannot be read")
    if code:
        raise InvalidInput(f"{path} is no user.conf of LoadGen: MODEL.SCENARIO.KEY = VALUE")
