"""Decisions: what workers do next, by the policy and by what applies under every policy.

Common to all policies: requests share cores with other work, or run between the queries of jobs,
and a few queries measure engines that are not profiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.core.scheduling.events import Reject
from synergai.core.scheduling.policy import Assign, Decision, Expect, Preempt
from synergai.core.scheduling.rules.concurrency import (
    MEASURED_S,
    expected_wait_s,
    is_brief,
    may_run_concurrently,
    runs_concurrently,
)
from synergai.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from synergai.core.scheduling.rules.active_jobs import ActiveJobs
    from synergai.core.scheduling.rules.interleaving import Interleaver, Interruption
    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.rules.leases import Leases
    from synergai.core.scheduling.rules.probes import Probes
    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.jobs import JobRecord, Lease
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import Job


class Decisions:
    """Decides after an event, and executes what is decided."""

    def __init__(
        self,
        state: State,
        jobs: ActiveJobs,
        leases: Leases,
        probes: Probes,
        interleaver: Interleaver,
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._leases = leases
        self._probes = probes
        self._interleaver = interleaver
        rejects = state.settings.infeasible == "reject"
        interleaves = not state.settings.strict
        rebalances = state.policy.rebalances
        passes: tuple[tuple[bool, Callable[[], None]], ...] = (
            (rejects, self._reject_infeasible),
            (True, self._probe_unprofiled_engines),
            (rebalances, self._probe_unplannable_workers),
            (interleaves, self._share_cores),
            (interleaves, self._interrupt_before_policy),
            (True, self._follow_policy),
            (interleaves, self._share_cores),
            (interleaves, self._interrupt_after_policy),
            (True, self._probe_idle_workers),
            (rebalances, self._stop_for_probes),
        )
        self._passes = tuple(run for applies, run in passes if applies)
        of_probes = (
            self._probe_unprofiled_engines,
            self._probe_unplannable_workers,
            self._probe_idle_workers,
            self._stop_for_probes,
        )
        self._passes_without_probes = tuple(each for each in self._passes if each not in of_probes)

    def schedule(self) -> None:
        """Decide on the waiting jobs, of which there is at least one, in passes."""
        self._state.waiting.reassess()
        for run in self._passes if self._probes.missing else self._passes_without_probes:
            run()

    def rebalance(self) -> None:
        """Let the policy move running work to other workers, while no job waits."""
        if self._leases.by_id and len(self._state.workers) > 1:
            self._execute(self._state.policy.decide(self._state))
        self._stop_for_probes()

    def abort_for(self, job: Job) -> None:
        """Abort the long requests and the query that alone make a job late that just arrived."""
        record = self._jobs.by_id.get(job.id)
        if record is None or record.is_request or self._state.settings.strict:
            return
        completes_at = self._jobs.expected_completion(job.id)
        if completes_at is None or completes_at <= job.deadline:
            return
        for lease in self._interleaver.in_the_way(record):
            self._leases.stop(lease, abort=True)

    # --- passes -----------------------------------------------------------------------------

    def _probe_unprofiled_engines(self) -> None:
        if self._is_probing():
            self._assign_probes(self._probes.for_unprofiled_engines())

    def _probe_unplannable_workers(self) -> None:
        if self._is_probing():
            self._assign_probes(self._probes.for_unplannable_workers())

    def _interrupt_before_policy(self) -> None:
        if self._state.queue.requests and self._state.fleet.interruptible:
            self._interrupt(self._interleaver.before_policy())

    def _follow_policy(self) -> None:
        while self._execute(self._state.policy.decide(self._state)) and self._state.queue.size:
            pass

    def _interrupt_after_policy(self) -> None:
        if self._state.queue.requests:
            self._interrupt(self._interleaver.after_policy())

    def _probe_idle_workers(self) -> None:
        if self._state.queue.size and self._is_probing():
            self._assign_probes(self._probes.for_idle_workers())

    def _stop_for_probes(self) -> None:
        """Stop running jobs where they would measure an unprofiled engine."""
        if self._probes.missing:
            for lease in self._probes.in_running_jobs():
                self._leases.stop(lease)

    def _is_probing(self) -> bool:
        return bool(self._probes.missing) and self._probes.are_needed()

    # --- execution --------------------------------------------------------------------------

    def _interrupt(self, interruptions: Iterable[Interruption]) -> None:
        for interruption in interruptions:
            request, worker, estimate, yielding, recalled, aborted = interruption
            self._interleaver.interrupted(interruption)
            if aborted is not None:
                self._leases.stop(aborted, for_request=True, abort=True)
            for lease in (*yielding, *recalled):
                self._leases.stop(lease, for_request=True)
            if estimate is None:
                self._assign_probes([(request, worker)])
            elif not self._leases.assign(Assign(request, worker, estimate, 1)):
                return  # it would be proposed again and again

    def _execute(self, decisions: Sequence[Decision]) -> bool:
        """Execute the policy's decisions; return whether they produced any command."""
        if not decisions:
            return False
        before = len(self._state.commands)
        for decision in decisions:
            match decision:
                case Assign(job, worker, estimate):
                    # Otherwise it waits, so that batches are not parted.
                    if self._state.takes(worker, job, estimate):
                        self._leases.assign(decision)
                case Preempt(lease):
                    self._leases.stop(lease)
                case Expect(job, completes_at):
                    job.planned_at = completes_at
        return len(self._state.commands) > before

    def _reject_infeasible(self) -> None:
        """Reject untouched jobs that no worker can finish before the deadline."""
        for job in self._state.waiting.infeasible():
            remaining_s = job.job.deadline - self._state.now
            fastest_s = job.job.deadline - job.latest_start
            reason = (
                f"no worker can meet the deadline: the fastest needs {fastest_s:.3g} s, "
                f"{max(0.0, remaining_s):.3g} s remain"
            )
            self._jobs.abort(job, JobState.REJECTED, reason)
            self._state.commands.append(Reject(job.job.id, reason))

    def _assign_probes(self, probes: Iterable[tuple[JobRecord, WorkerRecord]]) -> None:
        for job, worker in probes:
            lease = self._leases.probe(job, worker)
            self._probes.started(lease.assignment, worker.worker.worker_class)

    # --- sharing cores -------------------------------------------------------------------

    # Engines are small or large. If all of a worker's took turns, a query of a tenth of a
    # millisecond would wait for every long one ahead of it.

    def _share_cores(self) -> None:
        """Run requests concurrently with the work of busy workers, in the queue's order."""
        while self._state.queue.requests and self._state.fleet.shared:
            found = self._concurrent()
            if found is None or not self._leases.assign(found):
                return  # it would be proposed again and again

    def _concurrent(self) -> Assign | None:
        """Return the next request that runs concurrently with other work."""
        # Workers that an earlier request, brief or long, waits for: others that join a session
        # there would keep it from ever getting there.
        awaited: set[tuple[int, bool]] = set()
        for request in self._state.queue.first_requests(self._state.now):
            found: list[tuple[float, int, WorkerRecord, Estimate]] = []
            for worker in self._state.serving(request.job.engine):
                if not worker.leases and not worker.withdrawn:
                    found.clear()  # which is the policy's to decide
                    break
                estimates = self._state.estimator.for_job(request, worker)
                if not estimates or (head := worker.head) is None:
                    continue
                estimate = estimates[0]
                if head.estimate is None and head.session in worker.sessions:
                    self._await_measurement(head)
                if not may_run_concurrently(worker, estimate):
                    continue
                place = worker.index, is_brief(estimate, head)
                if place in awaited:
                    continue
                if runs_concurrently(worker, estimate):
                    answer_s = (
                        expected_wait_s(worker, estimate, self._state.now) + estimate.per_query_s
                    )
                    found.append((answer_s, worker.index, worker, estimate))
                else:
                    awaited.add(place)
            if found:
                _, _, worker, estimate = min(found, key=lambda each: each[:2])
                return Assign(request, worker, estimate, 1)
        return None

    def _await_measurement(self, head: Lease) -> None:
        """Let a request wait for a query that is measured, but not for a long one."""
        now = self._state.now
        if head.awaited_since is None:
            head.awaited_since = now
        elif head.is_long_probe or now < head.awaited_since + MEASURED_S:
            return
        elif head.reported_at is None or head.reported_at + MEASURED_S <= now:
            head.is_long_probe = True
            return
        else:  # another query has begun
            head.awaited_since = head.reported_at
        at = head.awaited_since + MEASURED_S
        self._state.call_at(at, lambda: None, head.job)  # decisions follow
