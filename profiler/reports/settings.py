"""Settings of ``synergai report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from profiler.reports.printed import QUERIES
from synergai.runtime.paths import default_dictionary
from synergai.runtime.settings import OptionName, Settings
from synergai.simulator.settings import RECONSTRUCTED_PROFILE, SweepSettings


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


class EvaluationSettings(SweepSettings, env_prefix="SYNERGAI_REPORT_"):
    """Settings of ``synergai report evaluation``."""

    # Called as in the other report.
    profile: Annotated[Path, OptionName("dictionary")] = Field(
        default=RECONSTRUCTED_PROFILE,
        description="The dictionary: a .db, .csv or .json file. The default is reconstructed from "
        "the figures printed in the thesis.",
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
