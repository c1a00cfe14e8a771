"""Decisions: what workers do next, by the policy and by what applies under every policy.

Common to all policies: requests run between the queries of jobs, interrupted jobs resume where they
ran, and a few queries measure engines that are not profiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.events import Reject
from synergai.scheduling.policy import Assign, Expect, Preempt
from synergai.scheduling.rules.sharing import CoreSharing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.scheduling.policy import Decision
    from synergai.scheduling.rules.active_jobs import ActiveJobs
    from synergai.scheduling.rules.interleaving import Interleaver, Interruption
    from synergai.scheduling.rules.kernel import State
    from synergai.scheduling.rules.leases import Leases
    from synergai.scheduling.rules.probes import Probes
    from synergai.scheduling.rules.resumption import Resumption
    from synergai.scheduling.state.records import JobRecord, WorkerRecord


class Decisions:
    """Decides after an event, and executes what is decided."""

    def __init__(
        self,
        state: State,
        jobs: ActiveJobs,
        leases: Leases,
        probes: Probes,
        interleaver: Interleaver,
        resumption: Resumption,
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._leases = leases
        self._probes = probes
        self._sharing = CoreSharing(state)
        self._interleaver = interleaver
        self._resumption = resumption

    def schedule(self) -> None:
        """Decide on the waiting jobs; there is at least one."""
        self._state.waiting.reassess()
        if self._state.settings.infeasible == "reject":
            self._reject_infeasible()
        probing = self._probes.are_needed()
        if probing:
            self._assign_probes(self._probes.for_unprofiled_engines())
            if self._state.policy.rebalances:
                self._assign_probes(self._probes.for_unplannable_workers())
        interleaves = not self._state.settings.strict
        if interleaves and self._state.queue.requests:
            self._share_cores()
            self._interrupt(self._interleaver.before_policy())
        # Jobs resume before the policy decides on others, but after the waiting requests.
        resumes = bool(self._resumption.jobs)
        if resumes and not self._state.queue.requests:
            self._resume()
        while self._execute(self._state.policy.decide(self._state)) and self._state.queue.size:
            pass
        if interleaves and self._state.queue.requests:
            self._share_cores()
            self._interrupt(self._interleaver.after_policy())
        if resumes:
            self._resume()
        if probing and self._state.queue.size:
            self._assign_probes(self._probes.for_idle_workers())
        if self._state.policy.rebalances:
            self._stop_for_probes()

    def rebalance(self) -> None:
        """Let the policy move running work, while no job waits."""
        self._state.waiting.reassess()
        if self._leases:
            self._execute(self._state.policy.decide(self._state))
        self._stop_for_probes()

    def _stop_for_probes(self) -> None:
        """Stop running jobs where they would measure an unprofiled engine."""
        for lease in self._probes.in_running_jobs():
            self._leases.stop(lease)

    def _share_cores(self) -> None:
        """Run requests concurrently with the work of busy workers."""
        for decision in self._sharing.decisions():
            if not self._leases.assign(decision):
                return  # it would be proposed again and again

    def _interrupt(self, interruptions: Iterable[Interruption]) -> None:
        """Run requests between two queries of running jobs."""
        for interruption in interruptions:
            request, worker, estimate, yielding, aborted = interruption
            self._interleaver.interrupted(interruption)
            if aborted is not None:
                self._leases.stop(aborted, for_request=True, abort=True)
            for lease in yielding:
                self._leases.stop(lease, for_request=True)
            if estimate is None:
                self._assign_probes([(request, worker)])
            elif not self._leases.assign(Assign(request, worker, estimate, 1)):
                return  # it would be proposed again and again

    def _resume(self) -> None:
        """Assign interrupted jobs again where they ran, as if there had been no request."""
        for decision in self._resumption.decisions():
            self._leases.assign(decision)

    def _execute(self, decisions: Sequence[Decision]) -> bool:
        """Execute the policy's decisions; return whether they produced any command."""
        before = len(self._state.commands)
        for decision in decisions:
            match decision:
                case Assign(job, worker, estimate) if not self._state.takes(worker, job, estimate):
                    pass  # it waits, so that batches are not parted
                case Assign():
                    self._resumption.discard(decision.job)
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
            self._jobs.abort(job)
            self._state.commands.append(
                Reject(
                    job.job.id,
                    f"no worker can meet the deadline: the fastest needs {fastest_s:.3g} s, "
                    f"{max(0.0, remaining_s):.3g} s remain",
                )
            )

    def _assign_probes(self, probes: Iterable[tuple[JobRecord, WorkerRecord]]) -> None:
        """Measure unprofiled engines with a few real queries."""
        for job, worker in probes:
            self._resumption.discard(job)
            lease = self._leases.probe(job, worker)
            self._probes.started(lease.assignment, worker.worker.worker_class)
