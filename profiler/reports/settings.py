"""Settings of ``synergai report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from profiler.reports.printed import QUERIES
from synergai.runtime.paths import default_dictionary
from synergai.runtime.settings import OptionName, Settings
from synergai.simulator.settings import (
    DEFAULT_POLICIES,
    RECONSTRUCTED_PROFILE,
    ExperimentName,
    PolicyName,
    SweepSettings,
    checked_seeds,
)
from synergai.simulator.workload import EXPERIMENTS


class CharacterisationSettings(Settings, env_prefix="SYNERGAI_REPORT_"):
    """Settings of ``synergai report characterisation``."""

    dictionary: Path = Field(
        default=default_dictionary(), description="The dictionary: a .db, .csv or .json file."
    )
    reconstructed: bool = Field(
        default=False,
        description="Report on the profile that was reconstructed from the thesis instead.",
    )
    output: Path = Field(
        default=Path("characterisation"),
        description="Folder for report.html, and the figures and tables as PNG and CSV files.",
    )
    queries: int = Field(
        default=QUERIES, ge=1, le=1 << 53, description="Queries of a run, for its total time."
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON: the files written, and the findings."
    )


class EvaluationSettings(Settings, env_prefix="SYNERGAI_REPORT_"):
    """Settings of ``synergai report evaluation``."""

    dictionary: Path = Field(
        default=RECONSTRUCTED_PROFILE,
        description="The dictionary: a .db, .csv or .json file. The default is reconstructed from "
        "the figures printed in the thesis.",
    )
    experiments: tuple[ExperimentName, ...] = Field(
        default=tuple(EXPERIMENTS),
        min_length=1,
        description="Experiments by demand (D) and frequency (F).",
    )
    policies: tuple[PolicyName, ...] = Field(
        default=DEFAULT_POLICIES, min_length=1, description="Scheduling policies to compare."
    )
    seeds: Annotated[str, AfterValidator(checked_seeds)] = Field(
        default="0-29", description="One run per seed; all policies get the same jobs."
    )
    bounds: bool = Field(
        default=False, description="Add a lower bound on violations for any schedule."
    )
    recordings: tuple[Path, ...] = Field(
        default=(),
        description="Event logs of gateways, to report on these instead of simulations.",
    )
    output: Path = Field(
        default=Path("evaluation"),
        description="Folder for report.html, and the figures and tables as PNG and CSV files.",
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON: the files written, and the findings."
    )

    def sweep(self) -> SweepSettings:
        """Return what to simulate."""
        return SweepSettings(
            profile=self.dictionary,
            experiments=self.experiments,
            policies=self.policies,
            seeds=self.seeds,
            bounds=self.bounds,
        )
