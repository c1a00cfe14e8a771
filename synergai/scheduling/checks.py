"""Checks: queries that run a second time on another worker, so that the answers can be compared.

No client waits for a check. It runs only on an idle worker that could run no waiting job, and only
if another such worker remains for what arrives meanwhile. It loads the engine, in the power mode of
the moment, only if none of its workers has it loaded. A request that finds no worker interrupts it
like a job. Checks are never queued, so that policies, estimates
of completion and the tenants' shares do not see them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from synergai.scheduling.events import Fail, Finish
from synergai.scheduling.ranges import Ranges
from synergai.scheduling.state import JobRecord

if TYPE_CHECKING:
    from collections.abc import Set

    from synergai.domain import EngineName, JobId, WorkerId
    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.events import CheckArrived, Command
    from synergai.scheduling.fleet import Fleet
    from synergai.scheduling.leases import Leases
    from synergai.scheduling.state import Lease, WorkerRecord


@dataclass(slots=True, eq=False)
class Check:
    """A check, and the workers that may run it, in order of preference."""

    record: JobRecord
    workers: tuple[WorkerId, ...]


class Checks:
    """Checks that wait, and those that run.

    The driver bounds their number.

    Args:
        fleet: the workers.
        estimator: knows what a check costs.
        leases: leases checks to workers.
        commands: output; receives the end of each check that was not cancelled.

    Attributes:
        waiting: the checks that wait, by the id of their job.
    """

    def __init__(
        self, fleet: Fleet, estimator: Estimator, leases: Leases, commands: list[Command]
    ) -> None:
        self._fleet = fleet
        self._estimator = estimator
        self._leases = leases
        self._commands = commands
        self.waiting: dict[JobId, Check] = {}
        self._running: dict[JobId, Check] = {}

    def add(self, event: CheckArrived) -> None:
        """Let a check wait for an idle worker."""
        job = event.job
        if job.id in self.waiting or job.id in self._running:
            return
        # Removed from the outset: it is never queued.
        record = JobRecord(job, 0, Ranges(), job.queries, removed=True, is_check=True)
        self.waiting[job.id] = Check(record, event.workers)

    def cancel(self, job_id: JobId) -> None:
        """Forget a check; one that runs is stopped by the caller."""
        self.waiting.pop(job_id, None)
        self._running.pop(job_id, None)

    def leases_of(self, job_id: JobId) -> list[Lease]:
        """Return the leases of a check that runs."""
        check = self._running.get(job_id)
        return [] if check is None else list(check.record.leases.values())

    def place(self, queued: Set[EngineName], now: float) -> None:
        """Lease waiting checks to idle workers.

        Args:
            queued: engines of waiting jobs; workers that have one of them run no checks.
            now: the instant of the event.
        """
        idle = [
            worker
            for worker in self._fleet.available(now)
            if not worker.leases and not worker.on_trial and worker.engines.isdisjoint(queued)
        ]
        for check in list(self.waiting.values()):
            if len(idle) < 2:
                return
            engine = check.record.job.engine
            known = [w for i in check.workers if (w := self._fleet.workers.get(i)) is not None]
            if not any(engine in worker.engines for worker in known):
                del self.waiting[check.record.job.id]
                self._commands.append(Fail(check.record.job.id, "no other worker has the engine"))
                continue
            serving = [worker for worker in idle if engine in worker.engines]
            if len(serving) > 1 and (option := self._choose(check.record, known, serving)):
                worker, estimate = option
                del self.waiting[check.record.job.id]
                self._running[check.record.job.id] = check
                self._leases.repeat(check.record, worker, estimate, now)
                idle.remove(worker)

    def released(self, lease: Lease) -> None:
        """Finish the check of a lease that has ended, or let it wait again if it has not run."""
        check = self._running.pop(lease.job.job.id, None)
        if check is None:
            return
        if lease.remaining:
            self.waiting[lease.job.job.id] = check
        else:
            self._commands.append(Finish(lease.job.job.id))

    def failed(self, job: JobRecord, reason: str) -> None:
        """Give up a check whose query has failed."""
        if self.waiting.pop(job.job.id, None) is not None:
            self._commands.append(Fail(job.job.id, reason))

    def _choose(
        self, job: JobRecord, known: list[WorkerRecord], idle: list[WorkerRecord]
    ) -> tuple[WorkerRecord, Estimate] | None:
        """Return the first idle one of the known workers that fits, and the cost there."""
        engine = job.job.engine
        loaded = any(s.engine == engine for worker in known for s in worker.sessions)
        for worker in known:
            if worker not in idle:
                continue
            for estimate in self._estimator.for_job(job, worker):
                mode = estimate.configuration.power_mode
                if estimate.session in worker.sessions and estimate.setup_s == 0.0:
                    return worker, estimate
                if estimate.configuration.variant:
                    continue  # not worth loading
                if not loaded and mode in ("", worker.power_mode):
                    return worker, estimate
        return None
