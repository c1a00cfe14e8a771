"""The scheduling policies by name, which settings check without loading the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.runtime.plugins import Registry

if TYPE_CHECKING:
    from synergai.scheduling.policy import Policy

POLICIES: Final[Registry[Policy]] = Registry(
    "synergai.policies",
    {
        "be": "synergai.scheduling.policies.be:BestEffort",
        "edf": "synergai.scheduling.policies.edf:EarliestDeadlineFirst",
        "fifo": "synergai.scheduling.policies.fifo:Fifo",
        "lru": "synergai.scheduling.policies.lru:LeastRecentlyUsed",
        "malleable": "synergai.scheduling.policies.malleable.policy:Malleable",
        "mru": "synergai.scheduling.policies.mru:MostRecentlyUsed",
        "rr": "synergai.scheduling.policies.rr:RoundRobin",
        "slo_mael": "synergai.scheduling.policies.slo_mael:SloMael",
        "srr": "synergai.scheduling.policies.srr:StrictRoundRobin",
        "synergai": "synergai.scheduling.policies.synergai:SynergAI",
    },
)
