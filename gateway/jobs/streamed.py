"""Streamed jobs: tensors of the queries stream in, results stream out."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from gateway.dispatch.job_handler import JobHandler
from gateway.jobs.permissions import in_tenant
from gateway.jobs.submitted_job import (
    execution_so_far,
    new_job_record,
    record_job_end,
    scheduler_job,
)
from gateway.jobs.tracker import JobTracker
from synergai.errors import InvalidInput
from synergai.jobs import JobStatus
from synergai.protocol.request_codec import RequestDecoder
from synergai.protocol.validation import check_header
from synergai.runtime.send_queue import SendQueue
from synergai.scheduling.events import QueriesReady

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from gateway.access.caller import Caller
    from gateway.admission.admission import Admission
    from gateway.admission.tenant_usage import TenantUsage
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.versions import Versions
    from gateway.fleet.worker import AssignmentProgress, ConnectedWorker
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import Engine, Fault, JobSpec, JobState
    from synergai.errors import SynergaiError
    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.unread import UnreadResponses
    from synergai.runtime.clock import Clock
    from synergai.scheduling.events import Assignment

WINDOW_QUERIES: Final = 256


@dataclass(frozen=True, slots=True)
class StreamedQuery:
    """A query: its index in the job and its serialized ``ModelInferRequest``."""

    index: int
    request: bytes


@dataclass(frozen=True, slots=True)
class Result:
    """A result: the index of its query and the serialized ``ModelInferResponse``."""

    index: int
    response: bytes


Answer: TypeAlias = JobStatus | Result


class StreamedJob(JobHandler):
    """A job whose client sends queries and reads results on one stream.

    A query is held until its result has been sent. The window bounds the held queries, so a client
    that reads no results is not read from either.
    """

    def __init__(
        self,
        tracker: JobTracker,
        engine: Engine,
        metrics: Metrics,
        window_bytes: int,
        unread: UnreadResponses,
        on_disconnected: Callable[[SynergaiError], object],
    ) -> None:
        self.tracker = tracker
        self.arrived = 0
        self._engine = engine
        self._metrics = metrics
        self._window_bytes = window_bytes
        self._decoder = RequestDecoder()
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._unread = unread.open(self._disconnect)
        self._on_disconnected = on_disconnected
        self._sending: list[Answer] = []
        self.answers: SendQueue[Answer] = SendQueue(WINDOW_QUERIES + 2)

    async def put(self, query: StreamedQuery) -> None:
        """Add the next query, waiting until the window has room for it."""
        queries = self.tracker.spec.queries
        if query.index != self.arrived or query.index >= queries:
            raise InvalidInput(
                f"queries must be sent in order, from 0 to {queries - 1}: "
                f"expected {self.arrived}, got {query.index}"
            )
        check_header(self._decoder.decode(query.request), self._engine)
        while self._held and (
            len(self._held) >= WINDOW_QUERIES
            or self._held_bytes + len(query.request) > self._window_bytes
        ):
            self._room.clear()
            await self._room.wait()
        await self._unread.wait_for_room()
        self._held[query.index] = query.request
        self._held_bytes += len(query.request)
        self.arrived += 1

    def release(self, result: Result) -> None:
        """Release the window of a result that has been sent."""
        self._unread.remove(len(result.response))
        self._held_bytes -= len(self._held.pop(result.index))
        self._room.set()

    async def next_answer(self) -> Answer | None:
        """Wait for the next answer to send; None once there are no more."""
        if not self._sending:
            self._sending = await self.answers.get_batch()
            self._sending.reverse()
        return self._sending.pop() if self._sending else None

    def close(self) -> None:
        """Stop counting unread results."""
        self._unread.close()

    def _disconnect(self, error: SynergaiError) -> None:
        """Drop the results, because the client reads too slowly."""
        self.answers.close()
        self.answers.get_batch_nowait()
        self._sending.clear()
        self._on_disconnected(error)

    def reader_ended(self, reader: asyncio.Task[None]) -> None:
        """Fail the stream if reading queries failed; a done callback for the reader task."""
        if not reader.cancelled() and (error := reader.exception()) is not None:
            self.answers.close(error)

    def requests(self, first: int, count: int) -> Sequence[bytes]:
        """Return the requests as the client sent them."""
        return [self._held[index] for index in range(first, first + count)]

    def on_dispatched(self, _worker: ConnectedWorker, assignment: Assignment, now: float) -> None:
        """Record the dispatch."""
        self.tracker.record_dispatch(assignment, now)

    def on_progress(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        responses: Sequence[Buffer],
        now: float,
    ) -> None:
        """Record the queries and send their results."""
        assignment = progress.assignment
        self.tracker.record_execution(assignment, execution_so_far(worker, progress, now))
        first = assignment.first + progress.done - len(responses)
        for index, response in enumerate(responses, first):
            self.answers.put(Result(index, bytes(response)))
            self._unread.add(len(response))

    def on_ended(self, state: JobState, reason: str, _fault: Fault, now: float) -> None:
        """Send the final status and end the stream."""
        self.tracker.record_end(state, now, reason)
        record_job_end(self._metrics, self.tracker)
        self.answers.put(self.tracker.snapshot())
        self.answers.close()


class StreamedJobs:
    """Runner of streamed jobs, each with at most `window_bytes` of inputs."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        versions: Versions,
        admission: Admission,
        metrics: Metrics,
        clock: Clock,
        *,
        window_bytes: int,
        unread: UnreadResponses,
    ) -> None:
        self._unread = unread
        self._dispatcher = dispatcher
        self._versions = versions
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._window_bytes = window_bytes

    async def run(
        self,
        caller: Caller,
        spec: JobSpec,
        budget_s: float | None,
        queries: AsyncIterator[StreamedQuery],
        on_disconnected: Callable[[SynergaiError], object] = lambda _: None,
    ) -> AsyncGenerator[Answer, None]:
        """Run a job; yield its initial status, results in any order, and the final status.

        Closing the generator cancels it. The caller is checked again for each query.
        `on_disconnected` is called if the answers end early, because they are read too slowly.
        """
        spec = in_tenant(caller, spec)
        caller.check_priority(spec.priority)
        await self._versions.wait_inspected(spec.engine, spec.version, budget_s)
        spec = self._versions.of_job(spec)
        engine = self._versions.catalogue.find(spec.engine_version)
        with ExitStack() as room:
            usage = self._admission.start_job(spec.tenant, spec.queries)
            if usage is not None:
                room.callback(usage.end_job)
            self._admission.acquire(self._window_bytes)
            room.callback(self._admission.release, self._window_bytes)
            tracker = JobTracker(
                new_job_record(spec, self._clock), self._clock, self._dispatcher.expected_completion
            )
            job = StreamedJob(
                tracker, engine, self._metrics, self._window_bytes, self._unread, on_disconnected
            )
            room.callback(job.close)
            answers = self._answers(caller, job, budget_s, queries, usage)
            async with aclosing(answers):
                async for answer in answers:
                    yield answer
                    del answer

    async def _answers(
        self,
        caller: Caller,
        job: StreamedJob,
        budget_s: float | None,
        queries: AsyncIterator[StreamedQuery],
        usage: TenantUsage | None,
    ) -> AsyncGenerator[Answer, None]:
        tracker = job.tracker
        scheduled = scheduler_job(tracker.record, self._clock, with_tensors=True)
        if budget_s is not None:
            deadline = min(scheduled.deadline, scheduled.arrival + budget_s)
            scheduled = replace(scheduled, deadline=deadline)
        self._dispatcher.submit(scheduled, job, ready=0)
        reader = asyncio.create_task(self._read(caller, job, queries, usage))
        reader.add_done_callback(job.reader_ended)
        try:
            yield tracker.snapshot()
            while (answer := await job.next_answer()) is not None:
                yield answer
                if isinstance(answer, Result):
                    job.release(answer)
                del answer  # the next one may be a long time coming
        finally:
            reader.cancel()
            self._dispatcher.cancel(scheduled.id)
            await asyncio.wait([reader])

    async def _read(
        self,
        caller: Caller,
        job: StreamedJob,
        queries: AsyncIterator[StreamedQuery],
        usage: TenantUsage | None,
    ) -> None:
        tracker = job.tracker
        async for query in queries:
            in_tenant(caller, tracker.spec)
            if usage is not None:
                await self._pace(usage, len(query.request))
            await job.put(query)
            self._dispatcher.post(QueriesReady(tracker.id, job.arrived))
            del query
        expected = tracker.spec.queries
        if job.arrived < expected:
            raise InvalidInput(f"the stream of queries ended after {job.arrived} of {expected}")

    async def _pace(self, usage: TenantUsage, size_bytes: int) -> None:
        """Wait until the tenant's rates allow a query of this size.

        A refusal would end the whole job; flow control slows the client down instead.
        """
        while wait_s := usage.wait_s(size_bytes, self._clock.now()):  # noqa: ASYNC110 - time passes
            await asyncio.sleep(wait_s)
        usage.charge(size_bytes, self._clock.now())
