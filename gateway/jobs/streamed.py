"""Jobs whose queries' tensors are streamed in, and whose results are streamed out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from gateway.jobs.status import JobStatus, JobTracker
from gateway.jobs.submitted import account, execution_of, job_of, new_status
from gateway.send_queue import Outbox
from synergai.errors import InvalidInput
from synergai.protocol.request_codec import RequestDecoder
from synergai.protocol.validation import check_header

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from gateway.admission.limits import Admission
    from gateway.clock import Clock
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.worker import ConnectedWorker, Outstanding
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import Engine, Fault, JobSpec, JobState
    from synergai.protocol.request_codec import Buffer
    from synergai.scheduling.events import Assignment

WINDOW_QUERIES: Final = 256


@dataclass(frozen=True, slots=True)
class Query:
    """One query: its number in the job, and its serialised ``ModelInferRequest``."""

    index: int
    request: bytes


@dataclass(frozen=True, slots=True)
class Result:
    """One result: the query's number, and the serialised ``ModelInferResponse``."""

    index: int
    response: bytes


Answer: TypeAlias = JobStatus | Result


class StreamedJob:
    """A job whose client sends queries and reads results on one stream.

    Queries are held from their arrival until their results have left, within a window: a
    client that does not read its results is not read from either.
    """

    durable = False
    with_tensors = True

    def __init__(
        self, tracker: JobTracker, engine: Engine, metrics: Metrics, window_bytes: int
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
        self.answers: Outbox[Answer] = Outbox(WINDOW_QUERIES + 2)

    async def put(self, query: Query) -> None:
        """Take in the next query, as soon as there is room for it.

        Raises:
            InvalidInput: it is not the next one, or does not fit the engine.
        """
        queries = self.tracker.spec.queries
        if query.index != self.arrived or query.index >= queries:
            raise InvalidInput(
                f"queries must come in order, from 0 to {queries - 1}: "
                f"{self.arrived} was next, not {query.index}"
            )
        check_header(self._decoder.decode(query.request), self._engine)
        while self._held and (
            len(self._held) >= WINDOW_QUERIES
            or self._held_bytes + len(query.request) > self._window_bytes
        ):
            self._room.clear()
            await self._room.wait()
        self._held[query.index] = query.request
        self._held_bytes += len(query.request)
        self.arrived += 1

    def release(self, result: Result) -> None:
        """A result has been handed to the client's stream."""
        self._held_bytes -= len(self._held.pop(result.index))
        self._room.set()

    def reader_ended(self, reader: asyncio.Task[None]) -> None:
        """Give up if the queries did; a callback for the task that reads them."""
        if not reader.cancelled() and (error := reader.exception()) is not None:
            self.answers.close(error)

    def requests(self, first: int, count: int) -> Sequence[bytes]:
        """The requests as the client sent them."""
        return [self._held[index] for index in range(first, first + count)]

    def dispatched(self, assignment: Assignment, now: float) -> None:
        """Note the first dispatch."""
        self.tracker.dispatched(assignment, now)

    def recorded(
        self,
        worker: ConnectedWorker,
        outstanding: Outstanding,
        responses: Sequence[Buffer],
        now: float,
    ) -> None:
        """Pass the results on."""
        assignment = outstanding.assignment
        self.tracker.recorded(assignment, execution_of(worker, outstanding, now))
        first = assignment.first + outstanding.done - len(responses)
        for index, response in enumerate(responses, first):
            self.answers.put(Result(index, bytes(response)))

    def ended(self, state: JobState, reason: str, _fault: Fault, now: float) -> None:
        """Let the job as it ended be the last answer."""
        self.tracker.end(state, now, reason)
        account(self._metrics, self.tracker.status)
        self.answers.put(self.tracker.status)
        self.answers.close()


class StreamedJobs:
    """Runs jobs whose tensors are streamed.

    Args:
        window_bytes: how much of a job's inputs is held at a time.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        catalogue: Catalogue,
        admission: Admission,
        metrics: Metrics,
        clock: Clock,
        *,
        window_bytes: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._catalogue = catalogue
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._window_bytes = window_bytes

    async def run(
        self, spec: JobSpec, budget_s: float | None, queries: AsyncIterator[Query]
    ) -> AsyncGenerator[Answer, None]:
        """Run a job; if the caller leaves, it is cancelled.

        Args:
            spec: what to do.
            budget_s: what is left of the call's deadline; None if it has none.
            queries: its queries' requests, in order.

        Yields:
            The job as it was accepted, results in any order, and the job as it ended.

        Raises:
            InvalidInput: queries are out of order, missing, or do not fit the engine.
            NotFound, Unavailable, EngineUnusable: see `Catalogue.find`.
            Overloaded: there are too many.
        """
        engine = self._catalogue.find(spec.engine)
        self._admission.acquire(self._window_bytes)
        tracker = JobTracker(new_status(spec, self._clock), self._clock)
        job = StreamedJob(tracker, engine, self._metrics, self._window_bytes)
        scheduled = job_of(tracker.status, self._clock, with_tensors=True)
        if budget_s is not None:
            deadline = min(scheduled.deadline, scheduled.arrival + budget_s)
            scheduled = replace(scheduled, deadline=deadline)
        self._dispatcher.start(scheduled, job, ready=0)
        reader = asyncio.create_task(self._read(job, queries))
        reader.add_done_callback(job.reader_ended)
        try:
            yield tracker.snapshot()
            while answers := await job.answers.take():
                for answer in answers:
                    yield answer
                    if isinstance(answer, Result):
                        job.release(answer)
        finally:
            reader.cancel()
            self._dispatcher.cancel(scheduled.id)
            self._admission.release(self._window_bytes)
            await asyncio.wait([reader])

    async def _read(self, job: StreamedJob, queries: AsyncIterator[Query]) -> None:
        tracker = job.tracker
        async for query in queries:
            await job.put(query)
            self._dispatcher.more_ready(tracker.id, job.arrived)
        wanted = tracker.spec.queries
        if job.arrived < wanted:
            raise InvalidInput(f"the stream of queries ended after {job.arrived} of {wanted}")
