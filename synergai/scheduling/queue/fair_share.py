"""Fair sharing of worker time between tenants.

Worker time is charged on assignment and decays exponentially. A tenant that exceeds its equal
share by more than the burst allowance yields to other tenants of the same priority; it still
gets capacity that is otherwise idle.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synergai.scheduling.settings import SchedulingSettings


class FairShare:
    """Decaying worker time per tenant, compared among tenants with active jobs."""

    def __init__(self, settings: SchedulingSettings) -> None:
        self._burst_s = settings.fair_burst_s
        self._half_life_s = settings.fair_half_life_s
        self._usage: dict[str, tuple[float, float]] = {}
        self._jobs: dict[str, int] = {}
        self._over_share: frozenset[str] = frozenset()

    @property
    def contended(self) -> bool:
        """Whether more than one tenant has active jobs."""
        return len(self._jobs) > 1

    def is_over(self, tenant: str) -> bool:
        """Return whether the tenant exceeded its share and burst at the last update."""
        return tenant in self._over_share

    def job_added(self, tenant: str) -> bool:
        """Count a new job; return whether it is the tenant's only one."""
        jobs = self._jobs.get(tenant, 0)
        self._jobs[tenant] = jobs + 1
        return not jobs

    def job_removed(self, tenant: str) -> None:
        """Count a job that left the system."""
        self._jobs[tenant] -= 1
        if not self._jobs[tenant]:
            del self._jobs[tenant]

    def charge(self, tenant: str, seconds: float, now: float) -> None:
        """Add `seconds` of worker time to the tenant's usage; negative refunds."""
        self._usage[tenant] = (max(0.0, self._usage_s(tenant, now) + seconds), now)

    def update(self, now: float) -> list[str]:
        """Recompute which tenants exceed their share; return those for which that changed."""
        usage_s = {tenant: self._usage_s(tenant, now) for tenant in self._jobs}
        allowed_s = sum(usage_s.values()) / max(1, len(usage_s)) + self._burst_s
        before = self._over_share
        self._over_share = frozenset(
            tenant for tenant, seconds in usage_s.items() if seconds > allowed_s
        )
        return sorted(self._over_share ^ before)

    def _usage_s(self, tenant: str, now: float) -> float:
        seconds, at = self._usage.get(tenant, (0.0, now))
        return seconds * math.exp2((at - now) / self._half_life_s)
