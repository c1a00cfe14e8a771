"""Settings of ``synergai simulate pipelines``."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from synergai.runtime.setting_types import Checked, OptionName
from synergai.runtime.settings import Settings
from synergai.simulator.simulator_settings import checked_seeds

Slow: TypeAlias = Literal["workers", "links"]


class BurstSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai simulate pipelines burst``."""

    env_prefix = "SYNERGAI_SIMULATE_BURST_"

    seeds: Annotated[
        str, Checked(checked_seeds), "One run per seed; all that is compared gets the same queries."
    ] = "0-4"
    as_json: Annotated[
        bool, OptionName("json"), "Print JSON, with the figures of every run, instead of tables."
    ] = False


class AccordionSettings(BurstSettings, frozen=True, kw_only=True):
    """Settings of ``synergai simulate pipelines accordion``."""

    env_prefix = "SYNERGAI_SIMULATE_ACCORDION_"

    bounds: Annotated[bool, "Add a lower bound on violations for any schedule."] = False


class InterferenceSettings(BurstSettings, frozen=True, kw_only=True):
    """Settings of ``synergai simulate pipelines interference``."""

    env_prefix = "SYNERGAI_SIMULATE_INTERFERENCE_"

    seeds: Annotated[str, Checked(checked_seeds), "One scenario per seed."] = "0-11"
    slow: Annotated[Slow, "What becomes slow for a while."] = "workers"
