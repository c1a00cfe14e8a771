"""Decisions: what workers do next, by the policy and by what applies under every policy.

Common to all policies: requests run between the queries of jobs, interrupted jobs resume where they
ran, and a few queries measure engines that are not profiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.events import Reject
from synergai.scheduling.policy import Assign, Expect, Preempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.scheduling.events import Command
    from synergai.scheduling.policy import Decision, Policy, View
    from synergai.scheduling.queue.wait_queue import WaitQueue
    from synergai.scheduling.rules.active_jobs import ActiveJobs
    from synergai.scheduling.rules.interleaving import Interleaver, Interruption
    from synergai.scheduling.rules.leases import Leases
    from synergai.scheduling.rules.probes import Probes
    from synergai.scheduling.rules.resumption import Resumption
    from synergai.scheduling.rules.sharing import CoreSharing
    from synergai.scheduling.settings import SchedulingSettings
    from synergai.scheduling.state.records import JobRecord, WorkerRecord


class Decisions:
    """Decides after an event, and executes what is decided.

    Args:
        policy: decides which waiting job runs where.
        view: what the policy sees.
        wait_queue: the waiting jobs.
        jobs: the active jobs; one that is rejected leaves them.
        leases: the assignments in flight.
        probes: chooses where unprofiled engines are measured.
        sharing: chooses which requests run concurrently with other work.
        interleaver: chooses which jobs yield to requests.
        resumption: the interrupted jobs.
        settings: scheduling options.
        commands: output; receives a ``Reject`` for each job that is rejected.
    """

    def __init__(
        self,
        policy: Policy,
        view: View,
        wait_queue: WaitQueue,
        jobs: ActiveJobs,
        leases: Leases,
        probes: Probes,
        sharing: CoreSharing,
        interleaver: Interleaver,
        resumption: Resumption,
        settings: SchedulingSettings,
        commands: list[Command],
    ) -> None:
        self._policy = policy
        self._view = view
        self._wait_queue = wait_queue
        self._queue = wait_queue.queue
        self._jobs = jobs
        self._leases = leases
        self._probes = probes
        self._sharing = sharing
        self._interleaver = interleaver
        self._resumption = resumption
        self._settings = settings
        self._commands = commands

    def schedule(self, now: float) -> None:
        """Decide on the waiting jobs; there is at least one."""
        self._wait_queue.reassess(now)
        if self._settings.infeasible == "reject":
            self._reject_infeasible(now)
        view = self._view
        view.now = now
        probing = self._probes.are_needed(self._queue)
        if probing:
            self._assign_probes(self._probes.for_unprofiled_engines(view), now)
            if self._policy.rebalances:
                self._assign_probes(self._probes.for_unplannable_workers(view), now)
        interleaves = not self._settings.strict
        if interleaves and self._queue.requests:
            self._share_cores(now)
            self._interrupt(self._interleaver.before_policy(), now)
        # Jobs resume before the policy decides on others, but after the waiting requests.
        resumes = bool(self._resumption.jobs)
        if resumes and not self._queue.requests:
            self._resume(now)
        while self._execute(self._policy.decide(view), now) and self._queue.size:
            pass
        if interleaves and self._queue.requests:
            self._share_cores(now)
            self._interrupt(self._interleaver.after_policy(), now)
        if resumes:
            self._resume(now)
        if probing and self._queue.size:
            self._assign_probes(self._probes.for_idle_workers(view), now)
        if self._policy.rebalances:
            self._stop_for_probes(now)

    def rebalance(self, now: float) -> None:
        """Let the policy move running work, while no job waits."""
        self._wait_queue.reassess(now)
        self._view.now = now
        if self._leases:
            self._execute(self._policy.decide(self._view), now)
        self._stop_for_probes(now)

    def _stop_for_probes(self, now: float) -> None:
        """Stop running jobs where they would measure an unprofiled engine."""
        for lease in self._probes.in_running_jobs(self._view):
            self._leases.stop(lease, now)

    def _share_cores(self, now: float) -> None:
        """Run requests concurrently with the work of busy workers."""
        for decision in self._sharing.decisions():
            if not self._leases.assign(decision, now):
                return  # it would be proposed again and again

    def _interrupt(self, interruptions: Iterable[Interruption], now: float) -> None:
        """Run requests between two queries of running jobs."""
        for request, worker, estimate, yielding, aborted in interruptions:
            if aborted is not None:
                self._leases.stop(aborted, now, for_request=True, abort=True)
            for lease in yielding:
                self._leases.stop(lease, now, for_request=True)
            if yielding:
                worker.interruptions += 1
                if estimate is not None:
                    worker.interrupted_s += estimate.seconds(1, with_tensors=True)
                worker.interrupted_at = now
            if estimate is None:
                self._assign_probes([(request, worker)], now)
            elif not self._leases.assign(Assign(request, worker, estimate, 1), now):
                return  # it would be proposed again and again

    def _resume(self, now: float) -> None:
        """Assign interrupted jobs again where they ran, as if there had been no request."""
        for decision in self._resumption.decisions():
            self._leases.assign(decision, now)

    def _execute(self, decisions: Sequence[Decision], now: float) -> bool:
        """Execute the policy's decisions; return whether they produced any command."""
        before = len(self._commands)
        for decision in decisions:
            match decision:
                case Assign():
                    self._resumption.discard(decision.job)
                    self._leases.assign(decision, now)
                case Preempt(lease):
                    self._leases.stop(lease, now)
                case Expect(job, completes_at):
                    job.planned_at = completes_at
        return len(self._commands) > before

    def _reject_infeasible(self, now: float) -> None:
        """Reject untouched jobs that no worker can finish before the deadline."""
        for job in self._wait_queue.infeasible(now):
            remaining_s = job.job.deadline - now
            fastest_s = job.job.deadline - job.latest_start
            self._jobs.abort(job, now)
            self._commands.append(
                Reject(
                    job.job.id,
                    f"no worker can meet the deadline: the fastest needs {fastest_s:.3g} s, "
                    f"{max(0.0, remaining_s):.3g} s remain",
                )
            )

    def _assign_probes(self, probes: Iterable[tuple[JobRecord, WorkerRecord]], now: float) -> None:
        """Measure unprofiled engines with a few real queries."""
        for job, worker in probes:
            self._resumption.discard(job)
            lease = self._leases.probe(job, worker, now)
            self._probes.started(lease.assignment, worker.worker.worker_class)
