"""Reports of workers on their assignments: that one has started, progressed or ended.

A report on an assignment that is not in flight changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.domain import Fault, Outcome

if TYPE_CHECKING:
    from synergai.scheduling.events import AssignmentEnded, AssignmentStarted, QueriesDone
    from synergai.scheduling.rules.crashes import Crashes
    from synergai.scheduling.rules.failures import Failures
    from synergai.scheduling.rules.hedging import Hedging
    from synergai.scheduling.rules.leases import Leases
    from synergai.scheduling.rules.outliers import Outliers
    from synergai.scheduling.rules.profile_changes import ProfileChanges
    from synergai.scheduling.rules.releases import Releases
    from synergai.scheduling.rules.resumption import Resumption
    from synergai.scheduling.rules.worker_changes import WorkerChanges
    from synergai.scheduling.state.fleet import Fleet
    from synergai.scheduling.state.records import Lease


class Reports:
    """Applies reports on assignments.

    Args:
        fleet: the workers.
        leases: the assignments in flight.
        workers: learns which sessions are loaded.
        profiles: learns how fast engines are.
        outliers: counts reports as signs of progress.
        crashes: lets variants pause that crash their host.
        hedging: knows whether requests may have copies, one of which may have answered.
        releases: ends leases.
        failures: charges those that failed.
        resumption: where interrupted jobs are remembered; None if the policy moves running work
            by itself.
    """

    def __init__(
        self,
        fleet: Fleet,
        leases: Leases,
        workers: WorkerChanges,
        profiles: ProfileChanges,
        outliers: Outliers,
        crashes: Crashes,
        hedging: Hedging,
        releases: Releases,
        failures: Failures,
        resumption: Resumption | None,
    ) -> None:
        self._fleet = fleet
        self._leases = leases
        self._workers = workers
        self._profiles = profiles
        self._outliers = outliers
        self._crashes = crashes
        self._hedging = hedging
        self._releases = releases
        self._failures = failures
        self._resumption = resumption

    def started(self, event: AssignmentStarted, now: float) -> None:
        """Record that the first query of an assignment runs."""
        lease = self._leases.get(event.assignment_id)
        if lease is None:
            return
        worker = self._fleet.workers[lease.assignment.worker_id]
        self._hear(lease, now)
        self._workers.add_session(worker, lease.session)
        self._leases.record_start(lease, event.setup_s, now)

    def progressed(self, event: QueriesDone, now: float) -> None:
        """Record the queries that are done so far."""
        lease = self._leases.get(event.assignment_id)
        if lease is None:
            return
        self._hear(lease, now, completed=event.done > lease.done)
        self._leases.record_progress(lease, event.done, event.compute_s, now)
        if self._hedging.is_on:
            self._releases.end_answered(lease, now)

    def ended(self, event: AssignmentEnded, now: float) -> None:
        """Record the outcome of an assignment, and what follows from it."""
        lease = self._leases.get(event.assignment_id)
        if lease is None:
            return
        done = max(event.done, lease.done)
        self._hear(lease, now, completed=event.outcome is Outcome.COMPLETED)
        lease.batch_size = event.batch
        self._leases.record_progress(lease, done, event.compute_s, now, final=True)
        if lease.done:
            self._profiles.learn(lease, now)
        self._releases.release(lease, now, stopped=event.outcome is Outcome.STOPPED)
        interrupted = lease.yielding and not lease.job.is_request
        if interrupted and event.outcome is Outcome.STOPPED and lease.job.queued:
            self._remember_interrupted(lease)
        if event.fault is Fault.CRASHED:
            self._pause_variant(lease, now)
        if event.outcome is Outcome.FAILED:
            self._failures.charge(lease, event.fault, event.detail, now)
        elif event.outcome is Outcome.COMPLETED and lease.remaining:
            detail = (
                f"worker {lease.assignment.worker_id} reported completion after {lease.done} of "
                f"{lease.assignment.count} queries"
            )
            self._failures.charge(lease, Fault.UNSPECIFIED, detail, now)

    def _hear(self, lease: Lease, now: float, *, completed: bool = False) -> None:
        worker = self._fleet.workers[lease.assignment.worker_id]
        if not lease.assignment.concurrent:  # which shows nothing about the head
            self._outliers.heard(worker, now)
        if completed and self._crashes.counts:
            self._crashes.completed(lease)
        if completed and (worker.ejections or worker.on_trial):
            self._outliers.completed(worker, now)

    def _remember_interrupted(self, lease: Lease) -> None:
        """Let the job resume where it ran, unless the policy moves running work by itself."""
        worker = self._fleet.workers.get(lease.assignment.worker_id)
        if worker is not None and self._resumption is not None:
            self._resumption.add(lease, worker)

    def _pause_variant(self, crashed: Lease, now: float) -> None:
        """Let the variant of an assignment pause on its worker, and take others of it back."""
        worker = self._crashes.crashed(crashed, now)
        if worker is not None:
            self._releases.revoke(worker, now, crashed.session)
