"""Failed assignments: what a worker cannot run, and whether the job is retried or fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.domain import Fault
from synergai.scheduling.events import Fail

if TYPE_CHECKING:
    from synergai.scheduling.events import Command
    from synergai.scheduling.queue.wait_queue import WaitQueue
    from synergai.scheduling.rules.active_jobs import ActiveJobs
    from synergai.scheduling.rules.retries import Retries
    from synergai.scheduling.rules.worker_changes import WorkerChanges
    from synergai.scheduling.settings import SchedulingSettings
    from synergai.scheduling.state.fleet import Fleet
    from synergai.scheduling.state.records import Lease


class Failures:
    """Charges failures to jobs and workers.

    Args:
        fleet: the workers.
        workers: records what they cannot run.
        jobs: the active jobs; one that fails leaves them.
        retries: counts faults, and lets jobs pause.
        wait_queue: the waiting jobs; one that pauses leaves them.
        settings: scheduling options.
        commands: output; receives a ``Fail`` for each job that fails.
    """

    def __init__(
        self,
        fleet: Fleet,
        workers: WorkerChanges,
        jobs: ActiveJobs,
        retries: Retries,
        wait_queue: WaitQueue,
        settings: SchedulingSettings,
        commands: list[Command],
    ) -> None:
        self._fleet = fleet
        self._workers = workers
        self._jobs = jobs
        self._retries = retries
        self._wait_queue = wait_queue
        self._settings = settings
        self._commands = commands

    def charge(self, lease: Lease, fault: Fault, detail: str, now: float) -> None:
        """Charge a failure to the job or the worker; fail the job once its retries are used up."""
        engine = lease.assignment.engine
        worker = self._fleet.workers.get(lease.assignment.worker_id)
        if (
            fault is Fault.ENGINE_BROKEN
            and worker is not None
            and worker.has_other_variants(lease.session, paused=True)
        ):
            fault = Fault.CONFIGURATION_UNUSABLE
        leaves_worker = fault in (Fault.ENGINE_BROKEN, Fault.UNKNOWN_ENGINE)
        if leaves_worker and worker is not None:
            self._workers.set_engines(worker, worker.engines - {engine}, now)
        if fault is Fault.CONFIGURATION_UNUSABLE and worker is not None:
            self._workers.add_unusable(worker, lease.session, now)
        job = lease.job
        if job.removed:
            return
        # Neither can happen again on the same worker.
        once = fault in (Fault.UNKNOWN_ENGINE, Fault.CONFIGURATION_UNUSABLE)
        counted = not once and self._retries.count_fault(job, lease.assignment.id)
        broken = fault in (Fault.ENGINE_BROKEN, Fault.CONFIGURATION_UNUSABLE)
        no_worker_left = broken and not self._fleet.serving(engine)
        if fault.is_of_query or no_worker_left or job.faults >= self._settings.max_faults:
            self._jobs.abort(job, now)
            self._commands.append(Fail(job.job.id, detail, fault))
        elif counted and not leaves_worker and self._retries.hold(job, now):
            self._wait_queue.withdraw(job)
