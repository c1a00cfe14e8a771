"""Settings of one experiment."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # pydantic reads the annotations

from pydantic import Field

from synergai.simulator.settings import ExperimentName, PolicyName, WorkloadSettings
from synergai.simulator.workload import Sessions  # noqa: TC001  # pydantic reads the annotations


class ExperimentSettings(WorkloadSettings, env_prefix="SYNERGAI_EXPERIMENT_"):
    """Settings of ``synergai experiment``."""

    live: bool = Field(
        default=False, description="Also run on a real gateway with emulated workers."
    )
    policy: PolicyName = Field(default="synergai", description="Scheduling policy.")
    experiment: ExperimentName = Field(
        default="DH-FH", description="Experiment, by demand (D) and frequency (F)."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Random seed.")
    time_scale: float = Field(
        default=60.0,
        ge=1,
        le=10_000,
        description="Speedup of the live run over profiled times.",
    )
    sessions: Sessions = Field(
        default="prewarmed",
        description="T_pre is paid at every start (virtual time only), once per session, or "
        "never. Starting a process takes about 0.2 s, regardless of the scale.",
    )
    directory: Path | None = Field(
        default=None,
        description="New directory for a live run's models, state, logs and event log; default: "
        "a temporary one.",
    )
    plot: Path | None = Field(default=None, description="PNG file for the run's timeline.")
