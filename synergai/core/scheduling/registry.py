"""The scheduling policies by name, which settings check without loading the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.runtime.plugins import Registry

if TYPE_CHECKING:
    from synergai.core.scheduling.policy import Policy

POLICIES: Final[Registry[Policy]] = Registry(
    "synergai.policies",
    {
        "be": "synergai.core.scheduling.policies.be:BestEffort",
        "edf": "synergai.core.scheduling.policies.edf:EarliestDeadlineFirst",
        "fifo": "synergai.core.scheduling.policies.fifo:Fifo",
        "lru": "synergai.core.scheduling.policies.lru:LeastRecentlyUsed",
        "malleable": "synergai.core.scheduling.policies.malleable.policy:Malleable",
        "mru": "synergai.core.scheduling.policies.mru:MostRecentlyUsed",
        "rr": "synergai.core.scheduling.policies.rr:RoundRobin",
        "slo_mael": "synergai.core.scheduling.policies.slo_mael:SloMael",
        "srr": "synergai.core.scheduling.policies.srr:StrictRoundRobin",
        "synergai": "synergai.core.scheduling.policies.synergai:SynergAI",
    },
)
