"""Settings of one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from synergai.simulator.simulator_settings import ExperimentName, PolicyName, WorkloadSettings
from synergai.simulator.workload import Sessions


class ExperimentSettings(WorkloadSettings, frozen=True, kw_only=True):
    """Settings of ``synergai experiment``."""

    env_prefix = "SYNERGAI_EXPERIMENT_"

    live: Annotated[bool, "Also run on a real gateway with emulated workers."] = False
    policy: Annotated[PolicyName, "Scheduling policy."] = "synergai"
    experiment: Annotated[ExperimentName, "Experiment, by demand (D) and frequency (F)."] = "DH-FH"
    seed: Annotated[int, "Random seed.", Meta(ge=0, le=2**63 - 1)] = 0
    time_scale: Annotated[
        float, "Speedup of the live run over profiled times.", Meta(ge=1, le=10_000)
    ] = 60.0
    sessions: Annotated[
        Sessions,
        "T_pre is paid at every start (virtual time only), once per session, or "
        "never. Starting a process takes about 0.2 s, regardless of the scale.",
    ] = "prewarmed"
    directory: Annotated[
        Path | None,
        "New directory for a live run's models, state, logs and event log; default: "
        "a temporary one.",
    ] = None
    plot: Annotated[Path | None, "PNG file for the run's timeline."] = None
