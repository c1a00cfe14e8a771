"""Fair shares: how much worker time each tenant has had, and who has had more than enough.

Worker time is charged when work is given out and forgotten exponentially. A tenant that had
more than its equal share, and a burst on top, yields to the others of the same priority; it
still gets whatever nobody else wants.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synergai.scheduling.events import SchedulingSettings


class Shares:
    """Decaying worker time by tenant, compared among the tenants that have jobs in the system."""

    def __init__(self, settings: SchedulingSettings) -> None:
        self._burst_s = settings.fair_burst_s
        self._half_life_s = settings.fair_half_life_s
        self._used: dict[str, tuple[float, float]] = {}
        self._jobs: dict[str, int] = {}
        self._over: frozenset[str] = frozenset()

    @property
    def contended(self) -> bool:
        """Whether there is anybody to be fair to."""
        return len(self._jobs) > 1

    def over(self, tenant: str) -> bool:
        """Whether the tenant had had more than its share and the burst at the last comparison."""
        return tenant in self._over

    def job_came(self, tenant: str) -> bool:
        """Count a job that entered the system; True if the tenant had none."""
        jobs = self._jobs.get(tenant, 0)
        self._jobs[tenant] = jobs + 1
        return not jobs

    def job_went(self, tenant: str) -> None:
        """Count a job that left the system."""
        self._jobs[tenant] -= 1
        if not self._jobs[tenant]:
            del self._jobs[tenant]

    def charge(self, tenant: str, seconds: float, now: float) -> None:
        """Add `seconds` of worker time; if negative, give some back."""
        self._used[tenant] = (max(0.0, self._had(tenant, now) + seconds), now)

    def compare(self, now: float) -> bool:
        """Find out anew who is over their share; True if that is somebody else than before."""
        had = {tenant: self._had(tenant, now) for tenant in self._jobs}
        allowed_s = sum(had.values()) / max(1, len(had)) + self._burst_s
        before = self._over
        self._over = frozenset(tenant for tenant, seconds in had.items() if seconds > allowed_s)
        return self._over != before

    def _had(self, tenant: str, now: float) -> float:
        seconds, at = self._used.get(tenant, (0.0, now))
        return seconds * math.exp2((at - now) / self._half_life_s)
