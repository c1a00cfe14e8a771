"""Settings of ``synergai simulate variants``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from synergai.runtime.settings import Duration, OptionName, Settings, field_of
from synergai.scheduling.choosers import CHOOSERS
from synergai.scheduling.settings import SchedulingOptions
from synergai.simulator.accuracy.demand import SHAPES, Shape
from synergai.simulator.accuracy.simulation import Start
from synergai.simulator.accuracy.study import SCENARIOS
from synergai.simulator.settings import checked_seeds, one_of

DEFAULT_RATES: Final = {
    "single-server": (3.0, 8.0, 16.0),
    "three-servers": (24.0, 48.0),
    "co-located": (3.0, 9.0),
    "distributed": (9.0, 27.0),
}
"""Requests per second of all engines together; with several, the last is three times the demand."""


def _checked_scenario(name: str) -> str:
    return one_of(name, list(SCENARIOS), "scenario")


def _checked_rule(name: str) -> str:
    return one_of(name, CHOOSERS.names(), "rule")


class VariantsSettings(Settings, env_prefix="SYNERGAI_SIMULATE_VARIANTS_"):
    """The rules to compare, and their load."""

    scenarios: tuple[Annotated[str, AfterValidator(_checked_scenario)], ...] = Field(
        default=tuple(SCENARIOS),
        min_length=1,
        description="Servers and engines: one engine on one or three servers, three on one "
        "(co-located), or each of three on two of three (distributed).",
    )
    rules: tuple[Annotated[str, AfterValidator(_checked_rule)], ...] = Field(
        default=("largest", "smallest", "chain", "model-switching", "slackfit", "allowance"),
        min_length=1,
        description="Rules that choose variants.",
    )
    shapes: tuple[Shape, ...] = Field(
        default=("twitter",),
        min_length=1,
        description=f"How the rate of requests changes: {', '.join(SHAPES)}.",
    )
    rates: tuple[Annotated[float, Field(gt=0, le=1000)], ...] = Field(
        default=(),
        description="Requests per second on average, of all engines together. The default depends "
        "on the scenario.",
    )
    seconds: int = Field(default=600, ge=10, le=36_000, description="Duration of each run.")
    seeds: Annotated[str, AfterValidator(checked_seeds)] = Field(
        default="0-2", description="One run per seed; all rules get the same requests."
    )
    cold: bool = Field(
        default=False,
        description="Begin with nothing loaded: a process is started in 0.5 s, and loads a variant "
        "in 0.05 s.",
    )
    lead: Duration = Field(
        default=0.0,
        ge=0.0,
        le=3600.0,
        description="Seconds between the workers' start and the first request, with --cold.",
    )
    preload: Literal["never", "requested", "all"] = field_of(SchedulingOptions, "preload")
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON instead of tables."
    )

    @property
    def start(self) -> Start:
        """Initial state of each run."""
        return Start(cold=self.cold, lead_s=self.lead, preload=self.preload)
