"""An unfinished submitted job, as the dispatcher sees it."""

from __future__ import annotations

import asyncio
import enum
import logging
import secrets
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.dispatch.job_handler import JobHandler
from gateway.jobs.staged_job import RecordedRange, StagedJob, StagedJobs
from gateway.journal.job_record import QueryRange, RecordedExecution, RecordedJob
from gateway.journal.store import StoreFull
from gateway.monitoring.counts import job_outcome
from synergai.domain import Engine, Fault, Job, JobId
from synergai.jobs import JobSpec, JobState
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.entry.admission import TenantUsage
    from gateway.fleet.worker import AssignmentProgress, ConnectedWorker
    from gateway.jobs.input_feed import InputFeed
    from gateway.journal.data_store import InputResult
    from gateway.journal.job_record import JobTracker
    from gateway.journal.journal import Journal
    from gateway.monitoring.metrics import Metrics
    from synergai.core.scheduling.events import Assignment
    from synergai.runtime.clock import Clock
    from synergai.wire.request_codec import Buffer

_log = logging.getLogger(__name__)


def scheduler_job(record: RecordedJob, clock: Clock, *, with_tensors: bool = False) -> Job:
    return Job(
        id=record.id,
        engine=record.spec.engine_version,
        queries=record.spec.queries,
        arrival=clock.to_monotonic(record.submitted_at),
        deadline=clock.to_monotonic(record.deadline_at),
        priority=record.spec.priority,
        tenant=record.spec.tenant,
        with_tensors=with_tensors,
        variant=record.spec.variant,
        min_accuracy=record.spec.min_accuracy,
    )


def new_job_record(spec: JobSpec, clock: Clock) -> RecordedJob:
    return RecordedJob(
        id=JobId(secrets.token_hex(8)),
        spec=spec,
        state=JobState.QUEUED,
        submitted_at=clock.unix_now(),
    )


def execution_so_far(
    worker: ConnectedWorker, progress: AssignmentProgress, now: float
) -> RecordedExecution:
    assignment = progress.assignment
    return RecordedExecution(
        worker_id=worker.id,
        configuration=assignment.configuration,
        first=assignment.first,
        count=progress.done,
        seconds=now - max(progress.dispatched_at, worker.free_since),
        labelled=progress.labelled,
        correct=progress.correct,
    )


def record_job_end(metrics: Metrics, tracker: JobTracker) -> None:
    status = tracker.snapshot()
    engine = metrics.engines[status.spec.engine_version]
    engine.labelled += status.labelled
    engine.correct += status.correct
    jobs = engine.jobs
    outcome = job_outcome(status.state, late=status.violated)
    jobs.count(outcome)
    metrics.tenants.count_job(status.spec.tenant, outcome)
    if tracker.record.dispatched_at is not None:
        jobs.queue.observe(status.waited_s)
    if status.actual_s is not None:
        jobs.observe_run(status.estimated_s, status.actual_s)
    if status.violated:
        jobs.count_violation(status.excess_s)


class _End(NamedTuple):
    """End of a job, at `now` in monotonic seconds."""

    state: JobState
    reason: str
    now: float


class Phase(enum.Enum):
    """What happens to an unfinished job; see `TRANSITIONS`."""

    OPENING = enum.auto()
    """Its files are not open yet."""
    RUNNING = enum.auto()
    """The dispatcher has it."""
    PAUSED = enum.auto()
    """It waits until the journal can be written, withdrawn from the dispatcher."""
    ENDING = enum.auto()
    """Its end is being recorded."""
    UNRECORDED = enum.auto()
    """Its end waits until the journal can be written."""
    ENDED = enum.auto()
    """Its end is recorded."""


TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.OPENING: frozenset({Phase.RUNNING, Phase.ENDING}),
    Phase.RUNNING: frozenset({Phase.PAUSED, Phase.ENDING}),
    Phase.PAUSED: frozenset({Phase.RUNNING, Phase.ENDING}),
    Phase.ENDING: frozenset({Phase.UNRECORDED, Phase.ENDED}),
    Phase.UNRECORDED: frozenset({Phase.ENDING}),
    Phase.ENDED: frozenset(),
}
"""The phases that may follow each phase."""


class SubmittedJob(JobHandler):
    """An unfinished submitted job. Its status shows only what the journal has recorded.

    Attributes:
        ending: done once its end is recorded, or could not be; None before its end.
        staged: its run while its engine runs in stages.
    """

    durable = True
    with_tensors = False

    def __init__(
        self,
        tracker: JobTracker,
        usage: TenantUsage | None,
        dispatcher: Dispatcher,
        journal: Journal,
        on_phase: Callable[[SubmittedJob], None],
        staged_jobs: StagedJobs,
    ) -> None:
        self._dispatcher = dispatcher
        self._staged_jobs = staged_jobs
        self._stage_numbers = count(1)
        self._journal = journal
        self._on_phase = on_phase
        self._end: _End | None = None
        self.tracker = tracker
        self.usage = usage
        self.phase = Phase.OPENING
        self.feed: InputFeed | None = None
        self.ending: asyncio.Future[None] | None = None
        self.staged: StagedJob | None = None

    # --- its owner's calls ----------------------------------------------------------------------

    def start(self, feed: InputFeed | None = None) -> None:
        """Run the queries that are not recorded; with a feed, over its inputs."""
        if feed is not None:
            self.feed = feed
            self.with_tensors = self.inputs_follow = True
        self._enter(Phase.RUNNING)
        if reason := self._too_many_failures():
            # Recorded while it was paused, or just before the gateway was killed.
            self.on_ended(JobState.FAILED, reason, Fault.UNSPECIFIED, self.tracker.clock.now())
            return
        record = self.tracker.record
        job = scheduler_job(record, self.tracker.clock, with_tensors=self.with_tensors)
        done = tuple((each.first, each.stop) for each in record.executions)
        if (route := self._staged_jobs.routes.route(record.spec)) is not None:
            log = None if self.feed is None else self.feed.data.inputs.log
            self.staged = StagedJob(
                self._staged_jobs,
                route,
                job,
                done,
                log,
                self._stage_numbers,
                record=self._record_staged,
                on_dispatched=self._note_dispatch,
                on_ended=self.on_ended,
            )
            self._show_stages(self.staged)
            self.staged.start()
        else:
            self._dispatcher.submit(job, self, ready=record.spec.queries, done=done)

    def pause(self) -> None:
        """Withdraw it from the dispatcher until `resume`, if it runs."""
        if self.phase is Phase.RUNNING:
            self._enter(Phase.PAUSED)
            self._dispatcher.suspend(self.tracker.id)
            self.close_staged()
            self.tracker.show_stages((), "")

    def resume(self) -> None:
        """Continue if it waits: record its end, or run the queries that are not recorded."""
        if self.phase is Phase.UNRECORDED and self._end is not None:
            self._record_end(self._end)
        elif self.phase is Phase.PAUSED:
            if self.feed is not None:
                self.feed.stop()
            if self.tracker.record.dispatched_at is not None:
                self._journal.record_dispatch(self.tracker.record)
            self.start()

    @property
    def runs_as_due(self) -> bool:
        """Whether it runs whole, or in the stages that its engine runs in now, if it runs."""
        route = None if self.staged is None else self.staged.route
        due = self._staged_jobs.routes.route(self.tracker.spec)
        return self.phase is not Phase.RUNNING or route == due

    def change_stages(self, usable: Collection[Engine]) -> bool:
        """Go on in the stages that its engine runs in now, if it can; return whether it does.

        Queries on their way end in the stages in which they began, which have to be usable.
        """
        route = self._staged_jobs.routes.route(self.tracker.spec)
        run = self.staged
        if run is None or route is None or not all(each in usable for each in run.engines):
            return False
        run.use(route)
        self._show_stages(run)
        return True

    def _show_stages(self, run: StagedJob) -> None:
        stages = tuple(each.name for each in run.route.engines)
        self.tracker.show_stages(stages, self._staged_jobs.routes.reason(self.tracker.spec))

    def expected_completion(self, now: float) -> float | None:
        """Return when it is expected to complete, in monotonic seconds; None if unknown."""
        if self.staged is not None:
            return self.staged.expected_completion(now)
        return self._dispatcher.core.expected_completion(self.tracker.id, now)

    async def cancel(self) -> None:
        """Cancel it before its next query, unless it has ended; return once that is recorded."""
        self._dispatcher.cancel(self.tracker.id)
        if self.ending is None:  # the dispatcher does not have it
            self.on_ended(JobState.CANCELLED, "", Fault.UNSPECIFIED, self.tracker.clock.now())
        if self.ending is not None:
            await asyncio.shield(self.ending)

    # --- the dispatcher's calls -----------------------------------------------------------------

    def retries_alone(self, query: int) -> bool:
        return self.feed is not None and self.feed.suspects.retries_alone(query)

    def on_dispatched(self, worker: ConnectedWorker, assignment: Assignment, now: float) -> None:
        """Record the first dispatch and the estimate, and begin to send the inputs."""
        self._note_dispatch(assignment, now)
        if self.feed is not None:
            self.feed.start(worker, assignment)

    def on_progress(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        responses: Sequence[Buffer],
        now: float,
    ) -> None:
        """Record the completed queries in the journal, after their results, then in the status."""
        assignment, feed = progress.assignment, self.feed
        execution = execution_so_far(worker, progress, now)
        if feed is None:
            self._record(assignment, execution, (), lambda _: None)
            return
        stop = assignment.first + progress.done
        results = feed.results(progress, responses)
        indexes = range(stop - len(results), stop)

        def free(recorded: RecordedExecution) -> None:
            feed.on_recorded(recorded, assignment, indexes)

        self._record(assignment, execution, results, free)

    def on_ended(self, state: JobState, reason: str, _fault: Fault, now: float) -> None:
        """Record the end in the journal, then in the status."""
        if self.feed is not None:
            self.feed.stop()
        self.close_staged()
        self._record_end(_End(state, reason, now))

    # --- the calls of its run in stages ---------------------------------------------------------

    def _note_dispatch(self, assignment: Assignment, now: float) -> None:
        if self.tracker.record_dispatch(assignment, now):
            self._journal.record_dispatch(self.tracker.record)

    def _record_staged(
        self,
        queries: RecordedRange,
        execution: RecordedExecution,
        results: Sequence[InputResult],
        held_bytes: int,
    ) -> None:
        """Record the last queries of an execution in the journal, after their results."""
        feed, run = self.feed, self.staged

        def free(_recorded: RecordedExecution) -> None:
            if feed is not None:
                feed.measure_results()
            if run is not None:
                run.recorded(len(results), held_bytes)

        self._record(queries, execution, results, free)

    def close_staged(self) -> None:
        if self.staged is not None:
            self.staged.close()
            self.staged = None

    # --- the journal's answers ------------------------------------------------------------------

    def _record(
        self,
        queries: QueryRange,
        execution: RecordedExecution,
        results: Sequence[InputResult],
        free: Callable[[RecordedExecution], None],
    ) -> None:
        """Record an execution; then call `free` with it."""
        job_id = self.tracker.id
        recorded: asyncio.Future[RecordedExecution] | asyncio.Future[None]
        if self.feed is None:
            recorded = self._journal.record_execution(job_id, queries.id, execution)
        else:
            sink = self.feed.data.results
            recorded = self._journal.record_results(job_id, queries.id, execution, sink, results)
        recorded.add_done_callback(partial(self._recorded, queries, execution, free))

    def _recorded(
        self,
        queries: QueryRange,
        execution: RecordedExecution,
        free: Callable[[RecordedExecution], None],
        recorded: asyncio.Future[RecordedExecution] | asyncio.Future[None],
    ) -> None:
        if (error := recorded.exception()) is not None:
            self._not_recorded(error)
            return
        execution = recorded.result() or execution
        self.tracker.record_execution(queries, execution)
        if reason := self._too_many_failures():
            self._fail(reason)
        free(execution)

    def _fail(self, reason: str) -> None:
        if self.staged is not None:
            self.staged.fail(reason)
        else:
            self._dispatcher.fail(self.tracker.id, reason)

    def _too_many_failures(self) -> str:
        """Return why the job fails if more of its inputs failed than may; empty if not."""
        failures, limit = self.tracker.failures, self.tracker.spec.max_failures
        if limit is None or failures <= limit:
            return ""
        # No count of the failures: results that are being recorded may still raise it.
        return f"more than {counted(limit, 'input')} failed" if limit else "an input failed"

    def _not_recorded(self, error: BaseException) -> None:
        if isinstance(error, StoreFull):
            # Before the core ends the job: these queries run again after the pause.
            self.pause()
        else:
            _log.error("job %s: queries not recorded: %s", self.tracker.id, error)

    def _record_end(self, end: _End) -> None:
        self._end = end
        self._enter(Phase.ENDING)
        record = replace(
            self.tracker.record,
            state=end.state,
            finished_at=self.tracker.clock.to_unix(end.now),
            reason=end.reason,
        )
        self.ending = self._journal.record_end(record)
        self.ending.add_done_callback(partial(self._end_recorded, end))

    def _end_recorded(self, end: _End, recorded: asyncio.Future[None]) -> None:
        error = recorded.exception()
        if error is None:
            self.tracker.record_end(end.state, end.now, end.reason)
            self._enter(Phase.ENDED)
        elif isinstance(error, StoreFull):
            self._enter(Phase.UNRECORDED)

    def _enter(self, phase: Phase) -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise RuntimeError(f"job {self.tracker.id}: {self.phase.name} before {phase.name}")
        self.phase = phase
        self._on_phase(self)
