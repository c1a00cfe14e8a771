"""What one experiment is to be."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # pydantic reads the annotations
from typing import Annotated

from pydantic import Field

from synergai.runtime.settings import OptionName, Settings
from synergai.simulator.settings import RECONSTRUCTED, ExperimentName, PolicyName
from synergai.simulator.workload import Sessions  # noqa: TC001  # pydantic reads the annotations


class ExperimentSettings(Settings, env_prefix="SYNERGAI_EXPERIMENT_"):
    """Settings of ``synergai experiment``."""

    live: bool = Field(
        default=False, description="Run it through a real gateway as well, on emulated workers."
    )
    policy: PolicyName = Field(default="synergai", description="Who schedules.")
    experiment: ExperimentName = Field(default="DH-FH", description="Demand (D) and frequency (F).")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Of all that is random.")
    time_scale: float = Field(
        default=60.0,
        ge=1,
        le=10_000,
        description="How many times faster than the profile a live run goes.",
    )
    sessions: Sessions = Field(
        default="prewarmed",
        description="T_pre is paid at every start (in virtual time only), once per session, or was "
        "paid beforehand. To start a process takes a fifth of a second, whatever the scale.",
    )
    estimate_error: float = Field(
        default=0.15,
        ge=0,
        le=2,
        description="How far real times are from the profile: the standard deviation of the "
        "logarithm of their ratio.",
    )
    profile: Path = Field(
        default=RECONSTRUCTED,
        description="Dictionary of the workers: a .csv, .json or .db file.",
    )
    predefined: dict[str, str] = Field(
        default={"agx": "mode=6", "nx": "mode=5"},
        description="Configurations by worker class for the policies that know no profile.",
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON instead of a table."
    )
    directory: Path | None = Field(
        default=None,
        description="New folder for a live run's models, state, logs and event log; a temporary "
        "one if not given.",
    )
    plot: Path | None = Field(default=None, description="File for the run's timeline, as PNG.")
