"""The kernel: what all rules share."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from synergai.core.scheduling.events import Command, Worker
    from synergai.core.scheduling.policy import Policy
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import EngineName, Session, WorkerClass, WorkerId
    from synergai.profiles.dictionary import ConfigurationDictionary


# Common to all policies: a job's latest start, its tenant's fair share, and when its order must be
# recomputed. A short queue is reranked at once. A long one is reranked job by job, at a limited
# rate, so that no event costs more the longer the queue is; until then, its other jobs keep their
# earlier ranks.

RERANKED_AT_ONCE: Final = 32
"""Jobs of one engine that a single event reranks."""
RERANKED_PER_S: Final = 20_000.0
"""Jobs reranked per second in longer queues; about a tenth of a processor's time."""
RERANKED_IN_A_ROW: Final = 200.0
"""Jobs of longer queues that a single event reranks, after a pause."""
RERANK_INTERVAL_S: Final = 0.01
"""Pause until reranking continues, if there are no events."""


class WaitQueue:
    """Keeps the queue in the policy's order while estimates and shares drift."""

    def __init__(self, view: View, policy: Policy) -> None:
        self._view = view
        self._policy = policy
        self._shares = _FairShare(view.settings)
        self._shares_drifted_at = math.inf
        # When each engine's estimates first drifted, oldest first.
        self._drifted: dict[EngineName, float] = {}
        # Jobs still to be reranked, by engine.
        self._stale: dict[EngineName, int] = {}
        self._allowance = RERANKED_IN_A_ROW
        self._reranked_at = -math.inf
        self._feasible_until: list[tuple[float, int, JobRecord]] = []

    def wakeup(self, now: float) -> float:
        """Return when waiting jobs must be re-examined, after `now`; infinite if only on events."""
        # A job is late just after its latest start, not at that very instant.
        instants = [math.nextafter(self._view.queue.next_rank(now), math.inf)]
        if self._feasible_until:
            instants.append(math.nextafter(self._feasible_until[0][0], math.inf))
        drifted_at = min(next(iter(self._drifted.values()), math.inf), self._shares_drifted_at)
        at_once = math.nextafter(now, math.inf)
        instants.append(max(drifted_at + self._view.settings.reassess_s, at_once))
        if self._stale:
            instants.append(now + RERANK_INTERVAL_S)
        return min(instant for instant in instants if instant > now)

    # --- jobs ---------------------------------------------------------------------------

    def job_added(self, job: JobRecord) -> None:
        """Record that a job entered the system."""
        if self._shares.job_added(job.job.tenant) and self._shares.contended:
            self._update_shares()

    def job_removed(self, job: JobRecord) -> None:
        """Withdraw a job that left the system."""
        if job.lane is not None:
            self._view.queue.remove(job)
        self._shares.job_removed(job.job.tenant)

    def charge(self, job: JobRecord, seconds: float) -> None:
        """Charge `seconds` of worker time to the job's tenant; negative refunds."""
        now = self._view.now
        self._shares.charge(job.job.tenant, seconds, now)
        if self._shares.contended and self._shares_drifted_at == math.inf:
            self._shares_drifted_at = now

    def enqueue(self, job: JobRecord) -> None:
        """Queue the job if it has assignable queries."""
        if not job.assignable:
            return
        self.rank(job)
        self._view.queue.add(job, over_share=job.job.tenant in self._shares.over_share)
        if self._view.settings.infeasible == "reject":
            self._track_feasibility(job)

    def withdraw(self, job: JobRecord) -> None:
        """Remove the job from the queue if it is queued."""
        if job.lane is not None:
            self._view.queue.remove(job)

    # --- order --------------------------------------------------------------------------

    def rank(self, job: JobRecord) -> None:
        """Set the latest start and the rank of a job."""
        deadline = job.job.deadline
        if deadline < math.inf:
            deadline -= self._view.estimator.fastest_s(job, self._view.serving(job.job.engine))
        job.latest_start = deadline
        job.rank = self._policy.rank(job)

    def rerank(self, engine: EngineName) -> None:
        """Recompute the ranks of the waiting jobs of `engine`; a long queue bit by bit."""
        self._drifted.pop(engine, None)
        count = self._view.queue.with_deadlines(engine)
        if count > RERANKED_AT_ONCE:
            self._stale[engine] = count
            return
        for job in self._view.queue.ranked_longest_ago(engine, count):
            self._rerank_job(job)

    def _rerank_job(self, job: JobRecord) -> None:
        latest_start = job.latest_start
        self.rank(job)
        self._view.queue.reorder(job)
        if self._view.settings.infeasible == "reject" and job.latest_start != latest_start:
            self._track_feasibility(job)

    def mark_drifted(self, engine: EngineName) -> None:
        """Schedule a rerank of `engine`; its estimates move too often to rerank on every report."""
        if engine not in self._drifted:
            self._drifted[engine] = self._view.now

    def reassess(self) -> None:
        """Rerank jobs whose estimates or shares have drifted for long enough.

        Starts with one engine per call to bound the time of a single event.
        """
        due = self._view.now - self._view.settings.reassess_s
        if self._drifted:
            engine, since = next(iter(self._drifted.items()))
            if since <= due:
                self.rerank(engine)
        if self._shares_drifted_at <= due:
            self._update_shares()
        if self._stale:
            self._rerank_stale()

    def _update_shares(self) -> None:
        self._shares_drifted_at = math.inf
        for tenant in self._shares.update(self._view.now):
            self._view.queue.set_over_share(tenant, over_share=tenant in self._shares.over_share)

    def _rerank_stale(self) -> None:
        """Continue to rerank long queues, as far as the rate allows."""
        now = self._view.now
        earned = (now - self._reranked_at) * RERANKED_PER_S
        self._allowance = min(self._allowance + earned, RERANKED_IN_A_ROW)
        self._reranked_at = now
        while self._stale and self._allowance >= 1:
            engine, left = next(iter(self._stale.items()))
            jobs = self._view.queue.ranked_longest_ago(engine, min(left, int(self._allowance)))
            for job in jobs:
                self._rerank_job(job)
            self._allowance -= len(jobs)
            if jobs and len(jobs) < left:
                self._stale[engine] = left - len(jobs)
            else:
                del self._stale[engine]

    # --- feasibility --------------------------------------------------------------------

    def _track_feasibility(self, job: JobRecord) -> None:
        if math.isfinite(job.latest_start):
            heapq.heappush(self._feasible_until, (job.latest_start, job.sequence, job))
            if len(self._feasible_until) > 4 * len(self._view.queue) + 16:
                self._feasible_until = [
                    entry for entry in self._feasible_until if _is_current(entry)
                ]
                heapq.heapify(self._feasible_until)

    def infeasible(self) -> Iterator[JobRecord]:
        """Yield untouched jobs that no worker could finish in time even if idle."""
        now = self._view.now
        while self._feasible_until and self._feasible_until[0][0] < now:
            entry = heapq.heappop(self._feasible_until)
            if _is_current(entry):
                job = entry[2]
                self._rerank_job(job)  # it may have been ranked before a better worker joined
                if job.latest_start < now:
                    yield job


def _is_current(entry: tuple[float, int, JobRecord]) -> bool:
    latest_start, _, job = entry
    unchanged = job.queued and job.latest_start == latest_start
    return unchanged and not job.done and not job.leases


class _FairShare:
    """Decaying worker time per tenant, compared among tenants with active jobs.

    A tenant that exceeds its equal share by more than the burst allowance yields to other tenants
    of the same priority; it still gets capacity that is otherwise idle.

    Attributes:
        contended: whether more than one tenant has active jobs.
        over_share: those that exceeded their share and burst at the last update.
    """

    def __init__(self, settings: SchedulingSettings) -> None:
        self._burst_s = settings.fair_burst_s
        self._half_life_s = settings.fair_half_life_s
        self._usage: dict[str, tuple[float, float]] = {}
        self._jobs: dict[str, int] = {}
        self.over_share: frozenset[str] = frozenset()
        self.contended = False

    def job_added(self, tenant: str) -> bool:
        """Count a new job; return whether it is the tenant's only one."""
        if tenant in self._jobs:
            self._jobs[tenant] += 1
            return False
        self._jobs[tenant] = 1
        self.contended = len(self._jobs) > 1
        return True

    def job_removed(self, tenant: str) -> None:
        """Count a job that left the system."""
        self._jobs[tenant] -= 1
        if not self._jobs[tenant]:
            del self._jobs[tenant]
            self.contended = len(self._jobs) > 1

    def charge(self, tenant: str, seconds: float, now: float) -> None:
        """Add `seconds` of worker time to the tenant's usage; negative refunds."""
        self._usage[tenant] = (max(0.0, self._usage_s(tenant, now) + seconds), now)

    def update(self, now: float) -> list[str]:
        """Recompute which tenants exceed their share; return those for which that changed."""
        usage_s = {tenant: self._usage_s(tenant, now) for tenant in self._jobs}
        allowed_s = sum(usage_s.values()) / max(1, len(usage_s)) + self._burst_s
        before = self.over_share
        self.over_share = frozenset(
            tenant for tenant, seconds in usage_s.items() if seconds > allowed_s
        )
        return sorted(self.over_share ^ before)

    def _usage_s(self, tenant: str, now: float) -> float:
        seconds, at = self._usage.get(tenant, (0.0, now))
        return seconds * math.exp2((at - now) / self._half_life_s)


SESSION_BYTES: Final = 512 << 20
"""Assumed size of a session of unknown size."""
VARIANT_BYTES: Final = 64 << 20
"""The same of a variant, which shares the host of others."""
MAX_REMEMBERED: Final = 10_000
"""Sizes that are remembered of a worker and of a class: of those that were first reported last."""


class SessionSizes:
    """Sizes of sessions, by worker and by worker class."""

    def __init__(self) -> None:
        # The largest that any worker of the class has reported.
        self._by_class: dict[WorkerClass, dict[Session, int]] = {}
        self._workers: Counter[WorkerClass] = Counter()
        # What a worker has reported itself.
        self._by_worker: dict[WorkerId, dict[Session, int]] = {}

    def add_worker(self, worker: Worker) -> None:
        """Add the sizes that a joining worker reports."""
        self._workers[worker.worker_class] += 1
        self._by_worker[worker.id] = {}
        for each in worker.session_sizes:
            self._record(worker, each.session, each.bytes)

    def remove_worker(self, worker: Worker) -> None:
        """Forget the sizes on a worker, and of a class without workers."""
        del self._by_worker[worker.id]
        self._workers[worker.worker_class] -= 1
        if not self._workers[worker.worker_class]:
            del self._workers[worker.worker_class]
            self._by_class.pop(worker.worker_class, None)

    def record(self, worker: WorkerRecord, session: Session, size: int) -> None:
        """Record what loading a session takes on a worker, in bytes; 0 if it is not known."""
        if size:
            self._record(worker.worker, session, size)

    def free(self, worker: WorkerRecord) -> float:
        """Return how many bytes of a worker's memory its sessions leave; infinite if unknown."""
        if not worker.worker.memory_bytes:
            return math.inf
        return worker.worker.memory_bytes - sum(self.of(worker, each) for each in worker.sessions)

    def of(self, worker: WorkerRecord, session: Session) -> int:
        """Return the size of a session: as reported, of its class, or as assumed."""
        known = self._by_worker.get(worker.id, {}).get(session)
        if known is None:
            known = self._by_class.get(worker.worker.worker_class, {}).get(session)
        if known is None:
            known = worker.worker.session_bytes.get(session.engine)
        if known is not None:
            return known
        return VARIANT_BYTES if session.configuration.variant else SESSION_BYTES

    def _record(self, worker: Worker, session: Session, size: int) -> None:
        _remember(self._by_worker[worker.id], session, size)
        sizes = self._by_class.setdefault(worker.worker_class, {})
        _remember(sizes, session, max(size, sizes.get(session, 0)))


def _remember(sizes: dict[Session, int], session: Session, size: int) -> None:
    sizes[session] = size
    if len(sizes) > MAX_REMEMBERED:
        del sizes[next(iter(sizes))]


class State(View):
    """What policies see, and what only rules change. Every rule receives it.

    Attributes:
        timers: heap of instants, with what is to be called then, before decisions; see `call_at`.
        forget_worker: called with a worker that has left.
        forget_job: called with a job that has left the system. Of single requests, rules keep
            nothing.
    """

    def __init__(self, settings: SchedulingSettings, dictionary: ConfigurationDictionary) -> None:
        super().__init__(settings, dictionary)
        self.dictionary = dictionary
        self.policy: Policy = POLICIES.create(settings.policy, settings.policy_options)
        self.waiting = WaitQueue(self, self.policy)
        self.sizes = SessionSizes()
        self.commands: list[Command] = []
        self.timers: list[tuple[float, int, Callable[[], None], JobRecord | None]] = []
        self._timed = 0
        self._most_timers = 64
        self.forget_worker: list[Callable[[WorkerRecord], None]] = []
        self.forget_job: list[Callable[[JobRecord], None]] = []

    def call_at(self, at: float, call: Callable[[], None], job: JobRecord | None = None) -> None:
        """Call a rule back at an instant, unless `job` has left the system."""
        self._timed += 1
        heapq.heappush(self.timers, (at, self._timed, call, job))
        if len(self.timers) > self._most_timers:
            # Most requests end long before their deadline.
            self.timers = [
                timer for timer in self.timers if timer[3] is None or not timer[3].removed
            ]
            heapq.heapify(self.timers)
            self._most_timers = 2 * len(self.timers) + 64

    def call_timers(self) -> None:
        """Call what is due."""
        while self.next_timer() <= self.now:
            heapq.heappop(self.timers)[2]()

    def next_timer(self) -> float:
        """Return when a rule is called back next; infinite if none is."""
        timers = self.timers
        while timers and (job := timers[0][3]) is not None and job.removed:
            heapq.heappop(timers)
        return timers[0][0] if timers else math.inf
