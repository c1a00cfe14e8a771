"""Settings of ``synergai simulate pipelines burst``."""

from __future__ import annotations

from typing import Annotated

from synergai.runtime.setting_types import Checked, OptionName
from synergai.runtime.settings import Settings
from synergai.simulator.simulator_settings import checked_seeds


class BurstSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai simulate pipelines burst``."""

    env_prefix = "SYNERGAI_SIMULATE_BURST_"

    seeds: Annotated[str, Checked(checked_seeds), "One search of each rate per seed."] = "0-4"
    as_json: Annotated[
        bool, OptionName("json"), "Print JSON, with the rate of every engine and seed."
    ] = False
