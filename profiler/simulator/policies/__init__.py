"""The thesis's policies that only experiments compare, beside those that the gateway offers."""

from __future__ import annotations

from typing import Final

from synergai.core.scheduling.policies import POLICIES

_AGNOSTIC: Final = "profiler.simulator.policies.profile_agnostic"

POLICIES.add(
    {
        "be": f"{_AGNOSTIC}:BestEffort",
        "lru": f"{_AGNOSTIC}:LeastRecentlyUsed",
        "mru": f"{_AGNOSTIC}:MostRecentlyUsed",
        "rr": f"{_AGNOSTIC}:RoundRobin",
        "slo_mael": "profiler.simulator.policies.slo_mael:SloMael",
        "srr": f"{_AGNOSTIC}:StrictRoundRobin",
    }
)
