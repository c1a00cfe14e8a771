"""Active jobs: each from its arrival until it finishes, fails, expires or is cancelled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from synergai.scheduling.events import Finish
from synergai.scheduling.state.ranges import Ranges
from synergai.scheduling.state.records import JobRecord

if TYPE_CHECKING:
    from synergai.domain import JobId
    from synergai.scheduling.events import Command, JobArrived
    from synergai.scheduling.queue.wait_queue import WaitQueue
    from synergai.scheduling.rules.expiries import Expiries
    from synergai.scheduling.rules.hedging import Hedging
    from synergai.scheduling.rules.leases import Leases
    from synergai.scheduling.rules.probes import Probes
    from synergai.scheduling.rules.residency import Residency
    from synergai.scheduling.rules.resumption import Resumption
    from synergai.scheduling.variants.choice import Variants


class ActiveJobs:
    """Lets jobs enter and leave the system, and notifies what keeps state about them.

    Args:
        wait_queue: where jobs with pending queries wait.
        leases: the assignments in flight, which are stopped when their job leaves.
        hedging: knows the copies of late requests.
        resumption: the interrupted jobs.
        variants: follows how busy engines with variants are.
        probes: knows the jobs that were stopped for a probe.
        residency: counts arrivals.
        expiries: deadlines of perishable jobs.
        commands: output; receives a ``Finish`` for each job that is completed.

    Attributes:
        by_id: the jobs.
    """

    def __init__(
        self,
        wait_queue: WaitQueue,
        leases: Leases,
        hedging: Hedging,
        resumption: Resumption,
        variants: Variants,
        probes: Probes,
        residency: Residency,
        expiries: Expiries,
        commands: list[Command],
    ) -> None:
        self._wait_queue = wait_queue
        self._leases = leases
        self._hedging = hedging
        self._resumption = resumption
        self._variants = variants
        self._probes = probes
        self._residency = residency
        self._expiries = expiries
        self._commands = commands
        self.by_id: dict[JobId, JobRecord] = {}
        self._next_sequence = 0

    def add(self, event: JobArrived, now: float) -> None:
        """Add a job; do nothing if it is active already."""
        job = event.job
        if job.id in self.by_id:
            return
        pending = Ranges.complement(event.done, job.queries)
        record = JobRecord(
            job, self._next_sequence, pending, event.ready, done=job.queries - pending.total
        )
        self._next_sequence += 1
        self.by_id[job.id] = record
        self._wait_queue.job_added(record, now)
        if job.engine in self._variants.engines:
            self._variants.arrived(record, now)
        if self._residency.is_on:
            self._residency.arrived(job.engine, now)
        if job.perishable and math.isfinite(job.deadline):
            self._expiries.add(record, len(self.by_id))
        if record.remaining == 0:
            self.finish(record, now)
        else:
            self._wait_queue.enqueue(record)

    def abort(self, job: JobRecord, now: float) -> None:
        """Remove the job and stop its assignments in flight."""
        self._remove(job)
        if self._hedging.is_on:
            self._hedging.stop(job, now)
        for lease in job.leases.values():
            self._leases.stop(lease, now, abort=True)

    def finish(self, job: JobRecord, now: float) -> None:
        """Remove a job whose queries are all recorded."""
        # An assignment whose queries are all recorded may not have ended yet.
        self.abort(job, now)
        self._commands.append(Finish(job.job.id))

    def _remove(self, job: JobRecord) -> None:
        del self.by_id[job.job.id]
        job.removed = True
        if not job.is_request:  # which is never interrupted, and of which no pace is kept
            self._resumption.discard(job)
            self._leases.job_removed(job)
            self._variants.removed(job)
            self._probes.job_removed(job.job.id)
        self._wait_queue.job_removed(job)
