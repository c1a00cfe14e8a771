"""Settings of one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from synergai.simulator.simulator_settings import ExperimentName, PolicyName, WorkloadSettings


class ExperimentSettings(WorkloadSettings, frozen=True, kw_only=True):
    """Settings of ``synergai experiment``."""

    env_prefix = "SYNERGAI_EXPERIMENT_"

    policy: Annotated[PolicyName, "Scheduling policy."] = "synergai"
    experiment: Annotated[ExperimentName, "Experiment, by demand (D) and frequency (F)."] = "DH-FH"
    seed: Annotated[int, "Random seed.", Meta(ge=0, le=2**63 - 1)] = 0
    time_scale: Annotated[
        float, "Speedup of the run over profiled times.", Meta(ge=1, le=10_000)
    ] = 60.0
    sessions: Annotated[
        Literal["warm", "prewarmed"],
        "T_pre is paid once per session, or never. Starting a process takes about 0.2 s, "
        "regardless of the scale.",
    ] = "prewarmed"
    directory: Annotated[
        Path | None,
        "New directory for the run's models, state, logs and event log; default: a temporary one.",
    ] = None
    plot: Annotated[Path | None, "PNG file for the run's timeline."] = None
