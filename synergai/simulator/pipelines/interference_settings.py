"""Settings of ``synergai simulate pipelines interference``."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from synergai.runtime.setting_types import Checked, OptionName
from synergai.runtime.settings import Settings
from synergai.simulator.simulator_settings import checked_seeds

Slow: TypeAlias = Literal["workers", "links"]


class InterferenceSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai simulate pipelines interference``."""

    env_prefix = "SYNERGAI_SIMULATE_INTERFERENCE_"

    seeds: Annotated[str, Checked(checked_seeds), "One scenario per seed."] = "0-11"
    slow: Annotated[Slow, "What becomes slow for a while."] = "workers"
    as_json: Annotated[
        bool, OptionName("json"), "Print JSON, with the rate and latency of each scenario."
    ] = False
