"""Workers and their work."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from synergai.core.scheduling.state.estimate import Estimate, Limit, Observed
from synergai.core.scheduling.state.jobs import Group, JobRecord, Lease, LeasePhase, Stretch
from synergai.domain import AssignmentId, Configuration, EngineName, Session, Variant, WorkerId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.core.scheduling.events import Worker
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.core.scheduling.variants.allowance import ConvexFront

MAX_REQUESTS: Final = 4
"""Requests in flight on an interrupted worker, or concurrent ones in one session; others wait in
the queue, in its order."""
MOST_AHEAD_S: Final = 0.5
"""Longest time by which work is sent ahead, however long its inputs take to arrive."""
DECAY: Final = 0.9
"""Weight of a worker's longest silence so far, with each further sign of progress."""
MOST_SIGNS: Final = 8
"""Signs of progress that an assignment may give besides completed queries: a few of its setup."""
_STRETCHES: Final = 32
"""Pieces of work that are remembered of each worker."""
_APART_S: Final = 0.1
"""Idle time of a worker between two requests that makes them separate pieces of work."""
ABORT_S: Final = 0.05
"""Time after which a worker has aborted the query that it computes."""


class WorkerRecord(Struct, eq=False):
    """A worker from joining to leaving the fleet.

    It is idle without leases and busy otherwise. A busy worker may be available as well, as work
    is prefetched. A draining worker becomes idle and stays so until it leaves.

    Attributes:
        index: order of joining; breaks ties.
        paused: sessions that failed, and until when they are not used; see `failures`.
        ejected_engines: engines that it made no progress with, and until when they are not used.
        power_mode: the mode after its current assignments; None if unknown.
        observed: what its reports have shown, also before it left and returned.
        leases: its other assignments in execution order, from `head`, which runs now, to `last`.
        concurrent: its assignments that run concurrently, in execution order by session.
        head_ends_at: expected end of the first lease.
        behind_head_s: expected duration of all other leases.
        groups: its `leases`, by what forms batches.
        available_at: from when on it accepts an assignment; -inf: already, inf: only an event
            can make it available.
        requests: how many of its `leases` are requests'.
        yielding: how many of its leases were stopped for a request.
        spreads: margin that is kept for deviations from estimates, by engine with variants.
        heard_at: when it last gave a sign of progress.
        silences_s: longest recent time between two of them, by engine.
        ejected_until: end of its pause as an outlier; None if it is not ejected.
        ejections: how often it was ejected since it last completed a query.
        on_trial: it was ejected, and has not completed a query since.
        stretches: what it has computed lately, but for concurrent requests.
    """

    worker: Worker
    index: int
    engines: set[EngineName]
    sessions: set[Session]
    id: WorkerId = WorkerId("")
    unusable: set[Session] = field(default_factory=set)
    variants: dict[EngineName, tuple[Variant, ...]] = field(default_factory=dict)
    query_s: dict[EngineName, float] = field(default_factory=dict)
    paused: dict[Session, float] = field(default_factory=dict)
    ejected_engines: dict[EngineName, float] = field(default_factory=dict)
    power_mode: str | None = None
    observed: Observed = field(default_factory=Observed)
    prefetch_s: float = 0.0
    draining: bool = False
    leases: dict[AssignmentId, Lease] = field(default_factory=dict)
    head: Lease | None = None
    last: Lease | None = None
    concurrent: dict[Session, dict[AssignmentId, Lease]] = field(default_factory=dict)
    head_ends_at: float = 0.0
    behind_head_s: float = 0.0
    idle_since: float = 0.0
    groups: list[Group] = field(default_factory=list)
    available_at: float = math.inf
    last_job: JobRecord | None = None
    requests: int = 0
    yielding: int = 0
    estimates: dict[EngineName, tuple[Estimate, ...]] = field(default_factory=dict)
    fronts: dict[EngineName, dict[tuple[Limit | None, bool], ConvexFront]] = field(
        default_factory=dict
    )
    spreads: dict[EngineName, float] = field(default_factory=dict)
    heard_at: float = -math.inf
    silences_s: dict[EngineName, float] = field(default_factory=dict)
    ejected_until: float | None = None
    ejections: int = 0
    on_trial: bool = False
    stretches: deque[Stretch] = field(default_factory=lambda: deque(maxlen=_STRETCHES))

    def __post_init__(self) -> None:
        self.id = self.worker.id

    @property
    def withdrawn(self) -> bool:
        """Whether it gets no new assignments: it drains, or is ejected as an outlier."""
        return self.draining or self.ejected_until is not None

    def configurations(self, engine: EngineName) -> list[Configuration]:
        """Return the configurations that it can run `engine` in."""
        if engine in self.ejected_engines:
            return []
        every: Iterable[Configuration] = self.worker.configurations
        if variants := self.variants.get(engine):
            every = [replace(each, variant=one.name) for each in every for one in variants]
        if self.unusable:
            every = [each for each in every if Session(engine, each) not in self.unusable]
        if self.paused:
            used = [each for each in every if Session(engine, each) not in self.paused]
            every = used or every
        return list(every)

    def has_other_variants(self, session: Session, *, paused: bool) -> bool:
        """Return whether it can run another variant of a session, perhaps one that pauses."""
        variant = session.configuration.variant
        without = self.unusable if paused else self.unusable | self.paused.keys()
        return bool(variant) and any(
            Session(session.engine, replace(configuration, variant=other.name)) not in without
            for configuration in self.worker.configurations
            for other in self.variants.get(session.engine, ())
            if other.name != variant
        )

    def all_leases(self) -> list[Lease]:
        """Return all of its assignments."""
        concurrent = [lease for leases in self.concurrent.values() for lease in leases.values()]
        return [*self.leases.values(), *concurrent]

    @property
    def is_idle(self) -> bool:
        """Whether it has no assignments."""
        return not self.leases and not self.concurrent

    @property
    def takes_more(self) -> bool:
        """Whether it is busy, and may get further assignments before it is idle."""
        out_of_service = self.draining or self.on_trial or self.ejected_until is not None
        return bool(self.leases) and not out_of_service

    @property
    def is_interruptible(self) -> bool:
        """Whether it runs a job, not a probe, and takes another request between two queries.

        It is one that `takes_more`.
        """
        return (
            self.requests < len(self.leases)
            and self.requests < MAX_REQUESTS
            and all(lease.estimate is not None for lease in self.leases.values())
        )

    def session_free_at(self, session: Session, now: float) -> float:
        """Return when its concurrent assignments in a session are expected to be over."""
        leases = self.concurrent.get(session)
        if not leases:
            return now
        first, *others = leases.values()
        began_at = now if first.head_at is None else first.head_at
        return max(now, began_at + first.expected_s) + sum([each.expected_s for each in others])

    def free_at(self, now: float) -> float:
        """Return when all of its assignments are expected to be over.

        An abort that it has not answered is expected to take as long again: it may be hung.
        """
        if not self.leases:
            return now
        head = self.head
        unanswered_s = 0.0 if head is None or head.aborted_at is None else now - head.aborted_at
        return max(self.head_ends_at, now) + unanswered_s + self.behind_head_s

    def request_wait_s(self, now: float) -> float:
        """Return the seconds until a request starts: one query, and other requests."""
        wait_s = 0.0
        for lease in self.leases.values():
            if lease.head_at is None:
                # Jobs behind the head are stopped before their first query.
                wait_s += lease.expected_s if lease.job.is_request else 0.0
            elif lease.job.is_request or lease.stopping:
                wait_s += max(0.0, self.head_ends_at - now)
            else:
                wait_s += lease.query_left_s(now)
                if lease.phase is LeasePhase.SETUP:
                    wait_s += max(0.0, lease.head_at + lease.assignment.setup_s - now)
        return wait_s

    def ends_at(self, lease: Lease, now: float) -> float:
        """Return when one of its assignments is expected to be over."""
        if lease.assignment.concurrent:
            return self.session_free_at(lease.session, now)
        at = max(self.head_ends_at, now)
        for each in self.leases.values():
            if not each.is_head:
                at += each.expected_s
            if each is lease:
                break
        return at

    def is_set_up_for(self, job: JobRecord, now: float) -> bool:
        """Return whether `job` would continue here without a pause, and so without setup."""
        return self.last_job is job and (bool(self.leases) or self.idle_since == now)

    def joins_batch(self, session: Session) -> bool:
        """Return whether the next request in `session` would join others in a batch."""
        if session in self.concurrent:
            return True
        last = self.groups[-1] if self.groups else None
        return last is not None and last.most > 1 and last.session == session

    def accepts(self, engine: EngineName, *, in_batches: bool, now: float) -> bool:
        """Return whether it takes an assignment of `engine` now, being available with batches.

        While it computes batches of one engine, requests of another engine gather behind them,
        unless they run concurrently. An assignment that would separate such requests waits.
        """
        last = self.groups[-1]
        if in_batches and last.session.engine == engine:
            return self._has_room(last)
        if in_batches and any(session.engine == engine for session in self.concurrent):
            return False
        if len(self.groups) == 1:
            return True
        return not in_batches and self.head_ends_at + self.behind_head_s - self.prefetch_s <= now

    def _has_room(self, last: Group) -> bool:
        """Return whether its last group takes another lease: of a batch, or two if it is alone."""
        return last.leases < (2 if len(self.groups) == 1 else 1) * last.most

    def next_available_at(self, settings: SchedulingSettings) -> float:
        """Return from when on it accepts an assignment: idle, or within the prefetch time of it.

        While it runs a job with tensors, it is sent the next assignment earlier by the time that
        the first input of that one takes to arrive. Time alone brings a worker no closer to idle
        than the work behind its head, so it may be that only an event makes it available. With
        batches, the next one is accepted while one is computed; see `accepts`.
        """
        if not self.leases:
            return math.inf if self.withdrawn else -math.inf
        # What yields returns to the queue first: another job must not take its place.
        if self.yielding or not self.takes_more:
            return math.inf
        last = self.groups[-1]
        if last.most > 1 and (len(self.groups) == 1 or self._has_room(last)):
            return -math.inf
        ahead_s = settings.prefetch_s
        if self.last is not None and self.last.brings_inputs:
            ahead_s = max(ahead_s, self._arrival_s(self.last.assignment.engine))
        if len(self.leases) >= settings.prefetch_count or self.behind_head_s > ahead_s:
            return math.inf
        return self.head_ends_at + self.behind_head_s - ahead_s

    def hear(self, now: float, *, completed: bool = False) -> None:
        """Note a sign of progress: a completed query, or one of a few others.

        A worker that tells of loads and modes for ever, but answers nothing, makes no progress.
        """
        head = self.head
        if head is not None and head.head_at is not None:
            if not completed:
                if head.signs >= MOST_SIGNS:
                    return
                head.signs += 1
            engine = head.assignment.engine
            silence_s = now - max(self.heard_at, head.head_at)
            longest_s = DECAY * self.silences_s.get(engine, 0.0)
            self.silences_s[engine] = max(silence_s, longest_s)
        self.heard_at = now

    def _arrival_s(self, engine: EngineName) -> float:
        """Return what the first input of another assignment of `engine` takes to arrive."""
        return min(self.observed.arrivals.get(engine, 0.0), MOST_AHEAD_S)

    def append(self, lease: Lease, now: float) -> None:
        """Add `lease` behind its other work, or concurrently."""
        if lease.assignment.concurrent:
            others = self.concurrent.setdefault(lease.session, {})
            if not others:
                lease.become_head(now)
            others[lease.assignment.id] = lease
            return
        if self.leases:
            self.behind_head_s += lease.expected_s
        else:
            lease.become_head(now)
            self.head = lease
            self.head_ends_at = now + lease.expected_s
        self._group(lease)
        self.last = lease
        self.last_job = lease.job
        self.requests += lease.job.is_request
        self.leases[lease.assignment.id] = lease

    def _group(self, lease: Lease) -> None:
        # The batches of a job are its own.
        times = lease.assignment.batch_times if lease.job.job.queries == 1 else None
        last = self.groups[-1] if self.groups else None
        if times is None or last is None or last.most == 1 or last.session != lease.session:
            lease.group = Group(lease.session, 1 if times is None else times.max_rows)
            self.groups.append(lease.group)
        else:
            lease.group = last
            last.leases += 1

    def stop(self, lease: Lease, now: float, *, for_request: bool = False) -> None:
        """Count no more work for `lease` but a long query, or any if it yields to a request."""
        lease.stop()
        if lease.assignment.concurrent:
            return
        self.yielding += for_request and not lease.yielding
        lease.yielding |= for_request
        if lease.is_head:
            left_s = lease.query_left_s(now) if for_request or lease.runs_long_query() else 0.0
            if lease.aborted_at is not None:
                left_s = min(left_s, ABORT_S)
            self.head_ends_at = min(self.head_ends_at, now + left_s)
        else:
            self._sum_behind_head()

    def remove(self, lease: Lease, now: float) -> None:
        """Remove `lease` at any position; the next one becomes the head."""
        if lease.assignment.concurrent:
            others = self.concurrent[lease.session]
            del others[lease.assignment.id]
            if not others:
                del self.concurrent[lease.session]
            elif lease.is_head:
                next(iter(others.values())).become_head(now)
            return
        if lease.head_at is not None:
            self._note_work(lease, lease.head_at, now)
        del self.leases[lease.assignment.id]
        if (group := lease.group) is not None:
            group.leases -= 1
            if not group.leases:
                self.groups.remove(group)
        self.requests -= lease.job.is_request
        self.yielding -= lease.yielding
        if not self.leases:
            self.head = self.last = None
            self.behind_head_s = 0.0
            self.idle_since = now
            if not lease.done:  # its setup is lost
                self.last_job = None
            return
        if lease is self.last:
            self.last = next(reversed(self.leases.values()))
            self.last_job = self.last.job
        if lease is self.head:
            head = self.head = next(iter(self.leases.values()))
            head.become_head(now)
            self.head_ends_at = now + head.expected_s
            if head.first_query_at is not None:  # which was reported before the end of this one
                queries_s = head.expected_s - head.assignment.setup_s
                self.head_ends_at = max(now, head.first_query_at + queries_s)
        self._sum_behind_head()

    def _note_work(self, lease: Lease, since: float, now: float) -> None:
        job, is_request = lease.job.job, lease.job.is_request
        last = self.stretches[-1] if self.stretches else None
        if (
            last is not None
            and since < last.until + _APART_S
            and (last.job is job or (is_request and last.precedes(job)))
        ):
            last.job, last.until = job, now
            last.queries += lease.done
        else:
            self.stretches.append(Stretch(job, is_request, lease.done, since, now))

    def _sum_behind_head(self) -> None:
        # Summed from scratch: rounding errors of differences would accumulate.
        seconds = [lease.expected_s for lease in self.leases.values()]
        self.behind_head_s = sum(seconds[1:])
