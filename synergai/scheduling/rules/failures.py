"""Failed assignments: what a worker cannot run, and whether the job is retried or fails.

A job whose assignments keep failing waits longer and longer before the next one. A fault after
progress is a new one, not a repetition: an engine host that crashes once an hour does not fail a
job that runs for days, while a query that always crashes it does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.domain import Fault
from synergai.scheduling.events import Fail

if TYPE_CHECKING:
    from synergai.domain import AssignmentId
    from synergai.scheduling.rules.active_jobs import ActiveJobs
    from synergai.scheduling.rules.kernel import State
    from synergai.scheduling.rules.shortages import Shortages
    from synergai.scheduling.rules.worker_changes import WorkerChanges
    from synergai.scheduling.state.records import JobRecord, Lease

FIRST_PAUSE_S: Final = 1.0
"""Pause after the second fault without progress in between; each further one doubles it."""
LONGEST_PAUSE_S: Final = 60.0
MEMORY_FAULTS: Final = 10
"""Failures for lack of memory, without progress in between, that fail a job: some minutes."""


class Failures:
    """Charges failures to jobs and workers, and lets jobs pause before their next retry."""

    def __init__(
        self, state: State, workers: WorkerChanges, jobs: ActiveJobs, shortages: Shortages
    ) -> None:
        self._state = state
        self._shortages = shortages
        self._workers = workers
        self._jobs = jobs

    def charge(self, lease: Lease, fault: Fault, detail: str) -> None:
        """Charge a failure to the job or the worker; fail the job once its retries are used up."""
        engine = lease.assignment.engine
        worker = self._state.fleet.workers.get(lease.assignment.worker_id)
        if (
            fault is Fault.ENGINE_BROKEN
            and worker is not None
            and worker.has_other_variants(lease.session, paused=True)
        ):
            fault = Fault.CONFIGURATION_UNUSABLE
        leaves_worker = fault in (Fault.ENGINE_BROKEN, Fault.UNKNOWN_ENGINE)
        if leaves_worker and worker is not None:
            self._workers.set_engines(worker, worker.engines - {engine})
        if fault is Fault.CONFIGURATION_UNUSABLE and worker is not None:
            worker.unusable.add(lease.session)
            self._workers.update_configurations(worker, engine)
        job = lease.job
        if job.removed:
            return
        # Neither can happen again on the same worker.
        once = fault in (Fault.UNKNOWN_ENGINE, Fault.CONFIGURATION_UNUSABLE)
        counted = not once and _count_fault(job, lease.assignment.id)
        broken = fault in (Fault.ENGINE_BROKEN, Fault.CONFIGURATION_UNUSABLE)
        no_worker_left = broken and not self._state.serving(engine)
        most = self._state.settings.max_faults
        lacks_memory = fault is Fault.OUT_OF_MEMORY and self._shortages.leaves_nothing_else(engine)
        if fault is Fault.OUT_OF_MEMORY:
            most = 1 if lacks_memory and job.is_request else MEMORY_FAULTS
        if fault.is_of_query or no_worker_left or job.faults >= most:
            self._jobs.abort(job)
            self._state.commands.append(Fail(job.job.id, detail, fault))
        elif lacks_memory:
            self._hold(job)
        elif counted and not leaves_worker and not job.is_request and job.faults > 1:
            # The first retry comes at once, as the fault may have been another job's or the host's.
            # Requests never pause: their clients wait.
            self._hold(job)

    def _hold(self, job: JobRecord) -> None:
        """Let a job pause after its last fault."""
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(job.faults - 2, 60), LONGEST_PAUSE_S)
        job.held_until = self._state.now + pause_s
        self._state.call_at(job.held_until, partial(self._resume, job, job.held_until), job)
        self._state.waiting.withdraw(job)

    def _resume(self, job: JobRecord, until: float) -> None:
        if job.held_until == until:
            job.held_until = None
            self._state.waiting.enqueue(job)


def _count_fault(job: JobRecord, assignment: AssignmentId) -> bool:
    """Count a failed assignment; return False if it belongs to the fault before.

    The job's faults start from 1 if it has made progress. What was in flight at a fault shares it:
    an engine host that dies takes all assignments with it that wait there.
    """
    if assignment <= job.fault_covers:
        return False
    job.faults = job.faults + 1 if job.done == job.done_at_fault else 1
    job.done_at_fault = job.done
    job.fault_covers = max(job.leases, default=assignment)
    return True
