"""Failed assignments: what a worker cannot run for now, and whether the job is retried or fails.

A job whose assignments keep failing waits longer and longer before the next one. A fault after
progress is a new one, not a repetition: an engine host that crashes once an hour does not fail a
job that runs for days, while a query that always crashes it does.

A session pauses on a worker after its host crashed, or lacked memory. With each further failure
without a completed query in between, the pause doubles.

- A crash costs all variants of the host, and the queries that wait for them. Whether the variant or
  the query was the cause is not known, since clients choose the queries. So the queries run in
  another variant or elsewhere. The last variant of an engine that a worker has left never pauses.
- Other processes, and other sessions, share the memory of a machine or an accelerator, so a lack of
  it passes. In the meantime, queries run in another configuration, such as on the CPU, or on
  another worker. Where nothing else is left, the session is used in spite of its pause.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.core.scheduling.events import AssignmentEnded, Fail, Pause
from synergai.domain import AssignmentId, EngineName, Fault, Outcome, Session, Variant, WorkerId
from synergai.jobs import JobState

if TYPE_CHECKING:
    from synergai.core.scheduling.rules.active_jobs import ActiveJobs
    from synergai.core.scheduling.rules.changes import WorkerChanges
    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.state.jobs import JobRecord, Lease
    from synergai.core.scheduling.state.workers import WorkerRecord

FIRST_PAUSE_S: Final = 1.0
"""Pause after the second fault without progress in between; each further one doubles it. The same
of a session after the first lack of memory."""
LONGEST_PAUSE_S: Final = 60.0
FIRST_CRASH_PAUSE_S: Final = 10.0
LONGEST_CRASH_PAUSE_S: Final = 600.0
MEMORY_FAULTS: Final = 10
"""Failures for lack of memory, without progress in between, that fail a job: some minutes."""


class Failures:
    """Charges failures to jobs and workers, and lets jobs and sessions pause after them.

    Attributes:
        counts: failures of sessions without a completed query in between, and the variants that
            the worker had.
    """

    def __init__(self, state: State, workers: WorkerChanges, jobs: ActiveJobs) -> None:
        self._state = state
        self._workers = workers
        self._jobs = jobs
        state.forget_worker.append(self._forget_worker)
        self.counts: dict[tuple[WorkerId, Session, Fault], tuple[int, tuple[Variant, ...]]] = {}

    def completed(self, lease: Lease) -> None:
        """Forget the failures of a session that has completed a query."""
        for fault in (Fault.CRASHED, Fault.OUT_OF_MEMORY):
            self.counts.pop((lease.assignment.worker_id, lease.session, fault), None)

    def ended(self, lease: Lease, event: AssignmentEnded, *, charge_job: bool) -> None:
        """Charge the failure of an assignment that ended before its last query.

        The worker alone is charged unless `charge_job`.
        """
        if event.fault is Fault.CRASHED:
            self._pause_crashed(lease)
        if event.fault is Fault.OUT_OF_MEMORY:
            self._pause_short(lease)
        fault, detail = event.fault, event.detail
        if event.outcome is not Outcome.FAILED:
            expected = lease.done or lease.stopping or fault is not Fault.UNSPECIFIED
            if event.outcome is Outcome.STOPPED and expected:
                return
            fault = Fault.HOST_DIED
            detail = (
                f"worker {lease.assignment.worker_id} ended an assignment unasked after "
                f"{lease.done} of {lease.assignment.count} queries"
            )
        self._charge(lease, fault, detail, charge_job=charge_job)

    # --- sessions -----------------------------------------------------------------------

    def _pause_crashed(self, lease: Lease) -> None:
        """Let the variant of an assignment pause, which crashed its engine host."""
        session, worker = lease.session, self._worker(lease)
        if worker is None or not worker.has_other_variants(session, paused=False):
            return
        variants = worker.variants[session.engine]
        count = self._count((worker.id, session, Fault.CRASHED), variants)
        pause_s = min(FIRST_CRASH_PAUSE_S * 2.0 ** min(count - 1, 30), LONGEST_CRASH_PAUSE_S)
        self._workers.pause(worker, session, self._state.now + pause_s)
        self._state.commands.append(Pause(worker.id, session, pause_s))
        self._jobs.revoke(worker, session)

    def _pause_short(self, lease: Lease) -> None:
        """Let the session of an assignment pause, which lacked memory, unless it does already."""
        session, worker = lease.session, self._worker(lease)
        if worker is None or session in worker.paused:
            return
        count = self._count((worker.id, session, Fault.OUT_OF_MEMORY))
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(count - 1, 30), LONGEST_PAUSE_S)
        self._workers.pause(worker, session, self._state.now + pause_s)

    def _count(
        self, key: tuple[WorkerId, Session, Fault], variants: tuple[Variant, ...] = ()
    ) -> int:
        """Count a failure, from 1 if the variants have changed: another file may not crash."""
        count, before = self.counts.get(key, (0, variants))
        self.counts[key] = (count + 1 if before == variants else 1), variants
        return self.counts[key][0]

    def _pauses_everywhere(self, engine: EngineName) -> bool:
        return all(
            Session(engine, configuration) in worker.paused
            for worker in self._state.serving(engine)
            for configuration in worker.configurations(engine)
        )

    def _worker(self, lease: Lease) -> WorkerRecord | None:
        return self._state.fleet.workers.get(lease.assignment.worker_id)

    def _forget_worker(self, worker: WorkerRecord) -> None:
        self.counts = {key: each for key, each in self.counts.items() if key[0] != worker.id}

    # --- jobs ---------------------------------------------------------------------------

    def _charge(self, lease: Lease, fault: Fault, detail: str, *, charge_job: bool) -> None:
        """Charge a failure to the job or the worker; fail the job once its retries are used up."""
        engine = lease.assignment.engine
        worker = self._worker(lease)
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
        if job.removed or not charge_job:
            return
        # Neither can happen again on the same worker.
        once = fault in (Fault.UNKNOWN_ENGINE, Fault.CONFIGURATION_UNUSABLE)
        counted = not once and _count_fault(job, lease.assignment.id)
        broken = fault in (Fault.ENGINE_BROKEN, Fault.CONFIGURATION_UNUSABLE)
        no_worker_left = broken and not self._state.serving(engine)
        most = self._state.settings.max_faults
        lacks_memory = fault is Fault.OUT_OF_MEMORY and self._pauses_everywhere(engine)
        if fault is Fault.OUT_OF_MEMORY:
            most = 1 if lacks_memory and job.is_request else MEMORY_FAULTS
        if fault.is_of_query or no_worker_left or job.faults >= most:
            self._jobs.abort(job, JobState.FAILED, detail)
            self._state.commands.append(Fail(job.job.id, detail, fault))
        elif lacks_memory:
            self._hold(job)
        elif counted and not leaves_worker and not job.is_request and job.faults > 1:
            # The first retry comes at once, as the fault may have been another job's or the host's.
            # Requests never pause: their clients wait.
            self._hold(job)

    def _hold(self, job: JobRecord) -> None:
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
