"""Scheduling policies, one file each, and their names.

Settings check the names without loading the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.runtime.plugins import Registry

if TYPE_CHECKING:
    from synergai.core.scheduling.policy import Policy

POLICIES: Final[Registry[Policy]] = Registry(
    "synergai.policies",
    {
        "edf": "synergai.core.scheduling.policies.edf:EarliestDeadlineFirst",
        "fifo": "synergai.core.scheduling.policies.fifo:Fifo",
        "malleable": "synergai.core.scheduling.policies.malleable.policy:Malleable",
        "synergai": "synergai.core.scheduling.policies.synergai:SynergAI",
    },
)
