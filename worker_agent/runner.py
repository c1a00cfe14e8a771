"""Runs work on the engine hosts, in the order in which it comes.

Invariants:

- Work on different hosts runs strictly one after the other: a worker's profile presumes that
  an engine has the machine for itself.
- Consecutive work for the same host is fed to it without waiting, so that the host is never
  idle while there is something to do.
- A host ends its runs in the order in which they were fed, also those that it computes together,
  so what is done of a piece of work is always a prefix of its queries.
- Every piece of work ends exactly once, unless it is abandoned.

No tasks and no clocks of its own: it acts when work arrives and when a host calls back.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from msgspec.structs import replace

from synergai.domain import Fault, Outcome, Session
from synergai.errors import SynergaiError, Unavailable
from worker_agent.ipc.frames import RunEnded, Tally

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from synergai.domain import BatchTimes, Engine, EngineName
    from synergai.protocol.request_codec import Buffer

    OnEnded: TypeAlias = Callable[[RunEnded], None]
    OnProgress: TypeAlias = Callable[[Tally], None]

_log = logging.getLogger(__name__)

REPORT_INTERVAL: Final = 0.05
"""Least seconds between two reports of the same work's progress."""
REPORT_BYTES: Final = 4 << 20
"""Responses waiting for a report that are sent even before the interval is over."""


class EngineHost(Protocol):
    """What the runner needs of an engine host; see `HostProcess`."""

    @property
    def is_closed(self) -> bool:
        """There is nothing more to be had from it."""

    def has_room(self, size: int) -> bool:
        """A query of `size` bytes can be fed now."""

    def run_query(
        self,
        request: Buffer,
        on_ended: OnEnded,
        batch_times: BatchTimes | None = None,
        due: float = ...,
    ) -> int:
        """Feed a query, with the terms on which it may share a batch; return the run."""

    def run_samples(
        self,
        first: int,
        count: int,
        on_progress: OnProgress,
        on_ended: OnEnded,
        job: str = "",
    ) -> int:
        """Feed a range of sample queries of a job; return the run."""

    def stop_run(self, run_id: int) -> None:
        """Stop the run at its next query."""


class HostSource(Protocol):
    """Where the runner gets hosts from."""

    def get_resident(self, session: Session) -> EngineHost | None:
        """The host of `session`, if it is up."""

    def load(self, session: Session) -> asyncio.Future[Any]:
        """Bring the session into memory; its host is `resident` when this is done."""


class WorkHandler(Protocol):
    """Who wants to know how a piece of work goes."""

    def on_started(self, setup_s: float) -> None:
        """Setup is over, and the first query runs or is next."""

    def on_progress(self, tally: Tally, responses: Sequence[bytes]) -> None:
        """So much is done; `responses` are those not reported before."""

    def on_ended(
        self,
        outcome: Outcome,
        tally: Tally,
        responses: Sequence[bytes],
        fault: Fault = Fault.UNSPECIFIED,
        detail: str = "",
    ) -> None:
        """The work is over."""


@dataclass(slots=True, kw_only=True, eq=False)
class WorkItem:
    """Queries of one engine: either requests, or a range of its sample set.

    Attributes:
        session: engine and configuration to run them on.
        handler: told how it goes; None once the work is abandoned.
        requests: serialised ``ModelInferRequest``s; empty for a range.
        first: the range's first query.
        count: how many queries.
        job: whose they are; empty if nobody's in particular.
        batch_times: how long batches take, if it may share one with other work of the session.
        due: instant by which it should be computed if it shares a batch.
    """

    session: Session
    handler: WorkHandler | None
    requests: Sequence[Buffer] = ()
    first: int = 0
    count: int = 1
    job: str = ""
    batch_times: BatchTimes | None = None
    due: float = math.inf

    fed: int = field(default=0, init=False)
    runs: set[int] = field(default_factory=set, init=False)
    tally: Tally = field(default=Tally(), init=False)
    responses: list[bytes] = field(default_factory=list, init=False)
    waiting_bytes: int = field(default=0, init=False)
    reported_at: float = field(default=0.0, init=False)
    setup_s: float = field(default=0.0, init=False)
    started: bool = field(default=False, init=False)
    stopped: bool = field(default=False, init=False)
    cut: bool = field(default=False, init=False)
    fault: Fault | None = field(default=None, init=False)
    detail: str = field(default="", init=False)

    @property
    def is_fed(self) -> bool:
        """Nothing more of it will be given to a host."""
        return self.fed == self.count or self.stopped or self.fault is not None

    def fail(self, fault: Fault, detail: str) -> None:
        """Take note of what went wrong; the first reason counts."""
        if self.fault is None:
            self.fault, self.detail = fault, detail


class Runner:
    """Feeds work to hosts and reports what becomes of it.

    Args:
        hosts: where sessions come from.
        engines: what this worker has; looked at anew for every piece of work.
        clock: a monotonic clock.
        when_idle: called whenever the last of the work has ended.
        max_response_bytes: what fits into one report; a query with a larger response fails.
    """

    def __init__(
        self,
        hosts: HostSource,
        engines: Mapping[EngineName, Engine],
        clock: Callable[[], float],
        on_idle: Callable[[], None] = lambda: None,
        max_response_bytes: float = math.inf,
    ) -> None:
        self._hosts = hosts
        self._engines = engines
        self._clock = clock
        self._on_idle = on_idle
        self._max_response_bytes = max_response_bytes
        self._host: EngineHost | None = None
        self._session: Session | None = None
        # In order. Work waits until all of it is fed, and runs from its first query on, so that
        # one piece can be in both.
        self._waiting: deque[WorkItem] = deque()
        self._running: deque[WorkItem] = deque()
        self._loading: asyncio.Future[Any] | None = None

    @property
    def is_idle(self) -> bool:
        """There is no work."""
        return not self._waiting and not self._running

    def add(self, work: WorkItem) -> None:
        """Run `work` after all that came before it."""
        self._check_engine(work)
        if work.fault is not None:
            self._finish(work)
            return
        self._waiting.append(work)
        self._pump()

    def stop(self, work: WorkItem) -> None:
        """End `work` at its next query; at once if none of it runs. Harmless when it is over."""
        work.stopped = True
        self._call_off(work)
        if not work.runs and work in self._waiting:
            self._finish(work)
        self._pump()

    def abandon(self, work: WorkItem) -> None:
        """Stop `work`, and tell nobody: whoever wanted it is gone."""
        work.handler = None
        self.stop(work)

    def abandon_all(self) -> None:
        """Abandon whatever there is."""
        for work in (*self._waiting, *self._running):
            self.abandon(work)

    # --- feeding ----------------------------------------------------------------------------

    def _pump(self) -> None:
        """Feed what can be fed."""
        while self._waiting:
            work = self._waiting[0]
            if not work.is_fed:
                self._check_engine(work)
            if work.is_fed:
                self._waiting.popleft()
                if not work.runs:
                    self._finish(work)
                continue
            host = self._host_for(work)
            if host is None or not self._feed(work, host):
                return

    def _check_engine(self, work: WorkItem) -> None:
        """Fail `work` if its engine is missing or turned out to be broken."""
        name = work.session.engine
        engine = self._engines.get(name)
        if engine is None:
            work.fail(Fault.UNKNOWN_ENGINE, f"this worker has no engine {name!r}")
        elif engine.fault:
            work.fail(Fault.ENGINE_BROKEN, engine.fault)

    def _host_for(self, work: WorkItem) -> EngineHost | None:
        """The host to feed `work` to, if it may be fed now."""
        if self._loading is not None:
            return None
        if work.session == self._session and self._host is not None and not self._host.is_closed:
            return self._host
        if self._running:
            return None
        host = self._hosts.get_resident(work.session)
        if host is None:
            self._load(work)
        self._host, self._session = host, work.session
        return host

    def _load(self, work: WorkItem) -> None:
        begin = self._clock()

        def loaded(task: asyncio.Future[Any]) -> None:
            self._loading = None
            work.setup_s = self._clock() - begin
            failure = None if task.cancelled() else task.exception()
            match failure:
                case None if not task.cancelled():
                    pass
                case Unavailable():
                    work.fail(Fault.HOST_DIED, str(failure))
                case SynergaiError():
                    work.fail(Fault.ENGINE_BROKEN, str(failure))
                case _:
                    _log.error("loading %s failed", work.session, exc_info=failure)
                    work.fail(Fault.HOST_DIED, "loading failed; the worker's log has the detail")
            self._pump()

        self._loading = self._hosts.load(work.session)
        self._loading.add_done_callback(loaded)

    def _feed(self, work: WorkItem, host: EngineHost) -> bool:
        """Feed a query, or a range; False if the host has no room."""
        if not work.requests:
            work.fed = work.count
            run = host.run_samples(
                work.first,
                work.count,
                lambda tally: self._range_progressed(work, tally),
                lambda ended: self._range_ended(work, ended),
                work.job,
            )
        else:
            request = work.requests[work.fed]
            if not host.has_room(len(request)):
                return False
            work.fed += 1
            run = host.run_query(
                request, lambda ended: self._query_ended(work, ended), work.batch_times, work.due
            )
        if not work.runs and (not self._running or self._running[-1] is not work):
            self._running.append(work)
        work.runs.add(run)
        self._start(self._running[0])
        return True

    # --- what hosts say ---------------------------------------------------------------------

    def _query_ended(self, work: WorkItem, ended: RunEnded) -> None:
        if len(ended.response) > self._max_response_bytes:
            ended = replace(
                ended,
                outcome=Outcome.FAILED,
                fault=Fault.BAD_INPUT,
                detail=f"the response has {len(ended.response):,} bytes; at most "
                f"{self._max_response_bytes:,} can be sent",
            )
        if ended.outcome is not Outcome.COMPLETED:
            # Later queries of it may still complete, but they are no prefix any more.
            work.cut = True
        elif not work.cut:
            response = bytes(ended.response)
            if work.responses and work.waiting_bytes + len(response) > self._max_response_bytes:
                self._report_progress(work)
            compute_s = work.tally.compute_s + ended.tally.compute_s
            batch = ended.tally.batch
            work.tally = Tally(work.tally.done + 1, compute_s=compute_s, batch=batch)
            work.responses.append(response)
            work.waiting_bytes += len(response)
            if work.tally.done < work.count and self._report_is_due(work):
                self._report_progress(work)
        self._run_ended(work, ended)

    def _range_progressed(self, work: WorkItem, tally: Tally) -> None:
        work.tally = tally
        self._report_progress(work)

    def _range_ended(self, work: WorkItem, ended: RunEnded) -> None:
        # A host that died knows less than it had reported.
        work.tally = max(work.tally, ended.tally, key=lambda tally: tally.done)
        self._run_ended(work, ended)

    def _run_ended(self, work: WorkItem, ended: RunEnded) -> None:
        work.runs.discard(ended.run_id)
        if ended.outcome is Outcome.FAILED:
            work.fail(ended.fault, ended.detail)
            self._call_off(work)
        if work.is_fed and not work.runs:
            self._finish(work)
        self._pump()

    def _call_off(self, work: WorkItem) -> None:
        """Have the host stop what runs of `work`."""
        if self._host is not None:
            for run in work.runs:
                self._host.stop_run(run)

    # --- reporting --------------------------------------------------------------------------

    def _start(self, work: WorkItem) -> None:
        """Say that the setup is over; a single query says so only if there was a setup."""
        if work.started:
            return
        work.started = True
        work.reported_at = self._clock()
        if work.handler is not None and (work.count > 1 or work.setup_s > 0):
            work.handler.on_started(work.setup_s)

    def _report_is_due(self, work: WorkItem) -> bool:
        late = self._clock() - work.reported_at >= REPORT_INTERVAL
        return late or work.waiting_bytes >= REPORT_BYTES

    def _report_progress(self, work: WorkItem) -> None:
        if work.handler is not None:
            work.handler.on_progress(work.tally, work.responses)
        work.responses, work.waiting_bytes, work.reported_at = [], 0, self._clock()

    def _finish(self, work: WorkItem) -> None:
        """The work is over: say so, and the next one is the first to run."""
        for queue in (self._waiting, self._running):
            if work in queue:
                queue.remove(work)
        if self._running:
            self._start(self._running[0])
        if work.handler is not None:
            self._report_end(work, work.handler)
        if self.is_idle:
            self._on_idle()

    @staticmethod
    def _report_end(work: WorkItem, handler: WorkHandler) -> None:
        if work.tally.done == work.count:
            handler.on_ended(Outcome.COMPLETED, work.tally, work.responses)
        elif work.fault is not None:
            handler.on_ended(Outcome.FAILED, work.tally, work.responses, work.fault, work.detail)
        else:
            handler.on_ended(Outcome.STOPPED, work.tally, work.responses)
