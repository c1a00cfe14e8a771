"""Settings of one experiment."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # pydantic reads the annotations
from typing import Annotated

from pydantic import Field

from synergai.runtime.settings import OptionName, Settings
from synergai.simulator.settings import RECONSTRUCTED_PROFILE, ExperimentName, PolicyName
from synergai.simulator.workload import Sessions  # noqa: TC001  # pydantic reads the annotations


class ExperimentSettings(Settings, env_prefix="SYNERGAI_EXPERIMENT_"):
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
    estimate_error: float = Field(
        default=0.15,
        ge=0,
        le=2,
        description="Deviation of actual from profiled times: the standard deviation of the "
        "logarithm of their ratio.",
    )
    profile: Path = Field(
        default=RECONSTRUCTED_PROFILE,
        description="Dictionary of the workers: a .csv, .json or .db file.",
    )
    predefined: dict[str, str] = Field(
        default={"agx": "mode=6", "nx": "mode=5"},
        description="Configurations by worker class for the profile-agnostic policies.",
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON instead of a table."
    )
    directory: Path | None = Field(
        default=None,
        description="New directory for a live run's models, state, logs and event log; default: "
        "a temporary one.",
    )
    plot: Path | None = Field(default=None, description="PNG file for the run's timeline.")
