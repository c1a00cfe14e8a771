"""Settings of ``synergai simulate pipelines accordion``."""

from __future__ import annotations

from typing import Annotated

from synergai.runtime.setting_types import Checked, OptionName
from synergai.runtime.settings import Settings
from synergai.simulator.simulator_settings import checked_seeds


class AccordionSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai simulate pipelines accordion``."""

    env_prefix = "SYNERGAI_SIMULATE_ACCORDION_"

    seeds: Annotated[
        str, Checked(checked_seeds), "One run per seed; all schedulers get the same queries."
    ] = "0-4"
    bounds: Annotated[bool, "Add a lower bound on violations for any schedule."] = False
    as_json: Annotated[
        bool, OptionName("json"), "Print JSON, with the figures of every run, instead of tables."
    ] = False
