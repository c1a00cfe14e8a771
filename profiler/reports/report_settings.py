"""Settings of ``synergai report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from profiler.reports.printed import QUERIES
from profiler.simulator.simulator_settings import (
    DEFAULT_POLICIES,
    RECONSTRUCTED_PROFILE,
    ExperimentNames,
    PolicyNames,
    SimulatorSettings,
    checked_seeds,
)
from profiler.simulator.workload import EXPERIMENTS
from synergai.runtime.paths import default_dictionary
from synergai.runtime.setting_types import Checked, OptionName, Positional
from synergai.runtime.settings import Settings


class CharacterisationSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai report characterisation``."""

    env_prefix = "SYNERGAI_REPORT_"

    dictionary: Annotated[Path, "The dictionary: a .db, .csv or .json file."] = msgspec.field(
        default_factory=default_dictionary
    )
    reconstructed: Annotated[
        bool, "Report on the profile that was reconstructed from the thesis instead."
    ] = False
    output: Annotated[
        Path, "Folder for report.html, and the figures and tables as PNG and CSV files."
    ] = Path("characterisation")
    queries: Annotated[int, "Queries of a run, for its total time.", Meta(ge=1, le=1 << 53)] = (
        QUERIES
    )
    as_json: Annotated[
        bool, OptionName("json"), "Print JSON: the files written, and the findings."
    ] = False


class EvaluationSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai report evaluation``."""

    env_prefix = "SYNERGAI_REPORT_"

    dictionary: Annotated[
        Path,
        "The dictionary: a .db, .csv or .json file. The default is reconstructed from "
        "the figures printed in the thesis.",
    ] = RECONSTRUCTED_PROFILE
    experiments: Annotated[ExperimentNames, "Experiments by demand (D) and frequency (F)."] = tuple(
        EXPERIMENTS
    )
    policies: Annotated[PolicyNames, "Scheduling policies to compare."] = DEFAULT_POLICIES
    seeds: Annotated[
        str, Checked(checked_seeds), "One run per seed; all policies get the same jobs."
    ] = "0-29"
    bounds: Annotated[bool, "Add a lower bound on violations for any schedule."] = False
    pipelines: Annotated[bool, "Add pipelines of stages, as of 'synergai simulate pipelines'."] = (
        False
    )
    recordings: Annotated[
        tuple[Path, ...], "Event logs of gateways, to report on these instead of simulations."
    ] = ()
    output: Annotated[
        Path, "Folder for report.html, and the figures and tables as PNG and CSV files."
    ] = Path("evaluation")
    as_json: Annotated[
        bool, OptionName("json"), "Print JSON: the files written, and the findings."
    ] = False

    def sweep(self) -> SimulatorSettings:
        """Return what to simulate."""
        return SimulatorSettings(
            profile=self.dictionary,
            experiments=self.experiments,
            policies=self.policies,
            seeds=self.seeds,
            bounds=self.bounds,
        )


class RunSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai report run``."""

    env_prefix = "SYNERGAI_REPORT_"

    log: Annotated[Path, Positional(), "Event log of a gateway (--event-log)."]
    output: Annotated[Path, "The page to write, one HTML file that needs nothing else."] = Path(
        "run.html"
    )
