"""Who waits, in which order, and until when there is hope.

What concerns every policy alike is settled here: a job's latest start, its tenant's fair share
and when its order has to be looked at again.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from synergai.scheduling.fair_share import Shares
from synergai.scheduling.queue import JobQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.domain import EngineName
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.events import SchedulingSettings
    from synergai.scheduling.fleet import Fleet
    from synergai.scheduling.policy import Policy
    from synergai.scheduling.state import JobRecord


class Waiting:
    """Keeps the queue in the policy's order while estimates and shares drift."""

    def __init__(
        self, policy: Policy, estimator: Estimator, fleet: Fleet, settings: SchedulingSettings
    ) -> None:
        self.queue = JobQueue()
        self._policy = policy
        self._estimator = estimator
        self._fleet = fleet
        self._settings = settings
        self._shares = Shares(settings)
        self._shares_drifted_at = math.inf
        # Since when, the longest time first.
        self._drifted: dict[EngineName, float] = {}
        self._hopes: list[tuple[float, int, JobRecord]] = []

    def wakeup(self, now: float) -> float:
        """When the waiting jobs have to be looked at again; not after `now` if not by time."""
        if not self.queue:
            return math.inf
        # A job is late once its latest start is over, not at that very instant.
        instants = [math.nextafter(self.queue.next_rank(now), math.inf)]
        if self._hopes:
            instants.append(math.nextafter(self._hopes[0][0], math.inf))
        drifted_at = min(next(iter(self._drifted.values()), math.inf), self._shares_drifted_at)
        at_once = math.nextafter(now, math.inf)
        instants.append(max(drifted_at + self._settings.reassess_s, at_once))
        return min(instant for instant in instants if instant > now)

    # --- jobs ---------------------------------------------------------------------------

    def came(self, job: JobRecord, now: float) -> None:
        """Note a job that entered the system."""
        if self._shares.job_came(job.job.tenant) and self._shares.contended:
            self._compare_shares(now)

    def went(self, job: JobRecord) -> None:
        """Note a job that left the system."""
        self.remove(job)
        self._shares.job_went(job.job.tenant)

    def charge(self, job: JobRecord, seconds: float, now: float) -> None:
        """Count `seconds` of worker time as had by the job's tenant; negative gives some back."""
        self._shares.charge(job.job.tenant, seconds, now)
        if self._shares.contended and self._shares_drifted_at == math.inf:
            self._shares_drifted_at = now

    def add(self, job: JobRecord) -> None:
        """Let the job wait, if anything of it can be given out."""
        if not job.leasable:
            return
        self._rank(job)
        self.queue.add(job, behind=self._shares.over(job.job.tenant))
        if self._settings.infeasible == "reject":
            self._hope(job)

    def remove(self, job: JobRecord) -> None:
        """Let the job wait no longer, if it did."""
        if job.lane is not None:
            self.queue.remove(job)

    # --- order --------------------------------------------------------------------------

    def _rank(self, job: JobRecord) -> None:
        deadline = job.job.deadline
        if deadline < math.inf:
            deadline -= self._estimator.fastest_s(job, self._fleet.serving(job.job.engine))
        job.latest_start = deadline
        job.rank = self._policy.rank(job)

    def rerank(self, engine: EngineName) -> None:
        """Rank the waiting jobs of `engine` anew, because their estimates are others now."""
        self._drifted.pop(engine, None)
        for lane in self.queue.of_engine(engine):
            for _, _, job in lane.entries:
                self._rank(job)
                if self._settings.infeasible == "reject":
                    self._hope(job)
            lane.sort()

    def drifted(self, engine: EngineName, now: float) -> None:
        """Note that the estimates of `engine` move, too often to rank at each step."""
        self._drifted.setdefault(engine, now)

    def reassess(self, now: float) -> None:
        """Rank jobs anew whose estimates or shares have drifted long enough.

        One engine's at a time, so that no event has to wait for all of them.
        """
        due = now - self._settings.reassess_s
        if self._drifted:
            engine, since = next(iter(self._drifted.items()))
            if since <= due:
                self.rerank(engine)
        if self._shares_drifted_at <= due:
            self._compare_shares(now)

    def _compare_shares(self, now: float) -> None:
        self._shares_drifted_at = math.inf
        if self._shares.compare(now):
            for job in list(self.queue):
                self.queue.remove(job)
                self.add(job)

    # --- hope ---------------------------------------------------------------------------

    def _hope(self, job: JobRecord) -> None:
        """Note until when the job, if nothing of it has run, can be begun in time."""
        if math.isfinite(job.latest_start):
            heapq.heappush(self._hopes, (job.latest_start, job.sequence, job))
            if len(self._hopes) > 4 * len(self.queue) + 16:
                self._hopes = [hope for hope in self._hopes if _still_holds(hope)]
                heapq.heapify(self._hopes)

    def hopeless(self, now: float) -> Iterator[JobRecord]:
        """Untouched jobs that no worker could finish in time even if it were free."""
        while self._hopes and self._hopes[0][0] < now:
            hope = heapq.heappop(self._hopes)
            if _still_holds(hope):
                yield hope[2]


def _still_holds(hope: tuple[float, int, JobRecord]) -> bool:
    latest_start, _, job = hope
    waits = job.lane is not None and job.latest_start == latest_start
    return waits and not job.done and not job.leases
