"""Ends of leases: what follows when an assignment is no longer in flight.

The assignment has ended, its worker has left, or it is taken back from the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.events import Revoke

if TYPE_CHECKING:
    from synergai.domain import Session
    from synergai.scheduling.events import Command
    from synergai.scheduling.rules.active_jobs import ActiveJobs
    from synergai.scheduling.rules.hedging import Hedging
    from synergai.scheduling.rules.leases import Leases
    from synergai.scheduling.rules.probes import Probes
    from synergai.scheduling.rules.residency import Residency
    from synergai.scheduling.state.records import Lease, WorkerRecord


class Releases:
    """Ends leases.

    Args:
        leases: the assignments in flight.
        jobs: the active jobs, which finish with their last lease.
        residency: plans loads again when a worker has less to do.
        probes: knows which assignments measure an engine.
        hedging: knows the copies of late requests.
        commands: output; receives a ``Revoke`` for each assignment that is taken back.
    """

    def __init__(
        self,
        leases: Leases,
        jobs: ActiveJobs,
        residency: Residency,
        probes: Probes,
        hedging: Hedging,
        commands: list[Command],
    ) -> None:
        self._leases = leases
        self._jobs = jobs
        self._residency = residency
        self._probes = probes
        self._hedging = hedging
        self._commands = commands

    def release(self, lease: Lease, now: float, *, stopped: bool = False) -> None:
        """End a lease; its job finishes if nothing of it remains."""
        self._leases.release(lease, now, stopped=stopped)
        if self._residency.is_on:
            self._residency.due = True
        self._probes.finished(lease.assignment.id)
        if self._hedging.is_on:
            self._hedging.released(lease, now)
            self.end_answered(lease, now)
        job = lease.job
        if not job.removed and job.remaining == 0:
            self._jobs.finish(job, now)

    def revoke(self, worker: WorkerRecord, now: float, session: Session | None = None) -> None:
        """Take the assignments of a worker back, or only those that run in `session`."""
        for lease in worker.all_leases():
            if session is None or lease.session == session:
                self._commands.append(Revoke(lease.assignment.id, worker.id))
                self.release(lease, now, stopped=True)

    def end_answered(self, lease: Lease, now: float) -> None:
        """End a request, one of whose two assignments has an answer."""
        if job := self._hedging.answered(lease):
            self._jobs.finish(job, now)
