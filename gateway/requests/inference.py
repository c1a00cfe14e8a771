"""Single requests: one query each, whose client waits on the line."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from gateway.admission.load_shedding import Backlog
from gateway.dispatch.job_handler import failure
from gateway.requests.parameters import NOTHING, asked_by
from gateway.requests.timings import serialised_timings
from synergai.domain import Job, JobId, JobState
from synergai.errors import Cancelled, DeadlineExceeded, SynergaiError
from synergai.protocol.status import code_of
from synergai.protocol.validation import check_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.admission.limits import Admission
    from gateway.clock import Clock
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.worker import ConnectedWorker, Outstanding
    from gateway.monitoring.engine_metrics import EngineMetrics
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import EngineName, Fault
    from synergai.protocol.request_codec import Buffer, RequestHeader
    from synergai.protocol.rpc import RawRequest
    from synergai.scheduling.events import Assignment

_OK: Final = "OK"


class Request:
    """One query on its way.

    Attributes:
        result: the serialised response, or the error that the client is to see.
    """

    __slots__ = (
        "_backlog",
        "_inference",
        "_outstanding",
        "_response",
        "_timings",
        "data",
        "dispatched_at",
        "estimate_s",
        "job",
        "metrics",
        "result",
    )
    durable = False
    with_tensors = True

    def __init__(
        self,
        inference: Inference,
        job: Job,
        data: bytes,
        metrics: EngineMetrics,
        backlog: Backlog,
        *,
        timings: bool,
    ) -> None:
        self._inference = inference
        self._backlog = backlog
        self._outstanding: Outstanding | None = None
        self._response: Buffer = b""
        self._timings = timings
        self.job = job
        self.data = data
        self.metrics = metrics
        self.dispatched_at: float | None = None
        self.estimate_s = 0.0
        self.result: asyncio.Future[Buffer] = inference.loop.create_future()

    def requests(self, _first: int, _count: int) -> Sequence[bytes]:
        """Its one request."""
        return (self.data,)

    def dispatched(self, assignment: Assignment, now: float) -> None:
        """Note when, and what is estimated."""
        if self.dispatched_at is None:
            self.dispatched_at = now
            self._backlog.dispatched(self.job, assignment.estimate_s, now)
            self.metrics.waited(now - self.job.arrival)
        self.estimate_s = assignment.estimate_s

    def recorded(
        self,
        _worker: ConnectedWorker,
        outstanding: Outstanding,
        responses: Sequence[Buffer],
        _now: float,
    ) -> None:
        """Keep the response until the core says that the job is done."""
        self._outstanding = outstanding
        self._response = responses[0]

    def ended(self, state: JobState, reason: str, fault: Fault, now: float) -> None:
        """Let the client have its response, or know why there is none."""
        if self.dispatched_at is None:
            self._backlog.leave(self.job)
        error = None
        if state is not JobState.SUCCEEDED:
            error = failure(self.job.engine, state, reason, fault)
        self._inference.leave(self, error, now)
        if self.result.done():
            return
        if error is None:
            self._answer(now)
        else:
            self.result.set_exception(error)

    def _answer(self, now: float) -> None:
        """Let the client have its response, and account for the time that it took."""
        response = self._response
        outstanding = self._outstanding
        if outstanding is not None:
            queue_s = outstanding.dispatched_at - self.job.arrival
            worked_s = now - outstanding.dispatched_at
            # What a worker says of itself counts up to the time that it had.
            compute_s = min(outstanding.compute_s, worked_s)
            self.metrics.statistics.answered(queue_s, worked_s - compute_s, compute_s)
            if self._timings:
                assignment = outstanding.assignment
                more = serialised_timings(
                    queue_s=queue_s,
                    transfer_s=worked_s - compute_s,
                    estimated_s=assignment.estimate_s,
                    worker=assignment.worker_id,
                    configuration=assignment.configuration,
                )
                response = b"".join((response, more))
        self.result.set_result(response)


class Inference:
    """Turns inference requests into jobs of one query, and their ends into responses.

    Attributes:
        loop: where all of that happens.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        catalogue: Catalogue,
        admission: Admission,
        metrics: Metrics,
        clock: Clock,
        epoch: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._dispatcher = dispatcher
        self._catalogue = catalogue
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._prefix = f"r{epoch:x}-"
        self._count = 0
        self._backlogs: defaultdict[EngineName, Backlog] = defaultdict(Backlog)

    async def infer(
        self, raw: RawRequest[RequestHeader], budget_s: float | None, tenant: str = ""
    ) -> bytes:
        """The serialised response to a request.

        Args:
            raw: the request.
            budget_s: what is left of the call's deadline; None if it has none.
            tenant: whom it is for, unless it says so itself.

        Raises:
            SynergaiError: as `begin` and the work itself say.
        """
        request = self.begin(raw, budget_s, tenant)
        try:
            return bytes(await request.result)
        except asyncio.CancelledError:
            self.abandon(request)
            raise

    def begin(
        self, raw: RawRequest[RequestHeader], budget_s: float | None, tenant: str = ""
    ) -> Request:
        """Accept a request; its result comes by its future.

        Raises:
            InvalidInput: it does not fit its engine, or a parameter is wrong.
            NotFound, Unavailable, EngineUnusable: see `Catalogue.find`.
            NotSupported: it needs a model with a state.
            DeadlineExceeded: its deadline is over.
            Overloaded: there are too many, or too many come first for its deadline.
        """
        header, data = raw.parsed, raw.data
        try:
            engine = self._catalogue.find(header.message.model_name)
        except SynergaiError as error:
            # Names that do not exist share one label, or clients could make labels up.
            self._metrics.engine("unknown").answered(code_of(error).name)
            raise
        metrics = self._metrics.engine(engine.name)
        try:
            check_header(header, engine)
            asked = asked_by(parameters) if (parameters := header.message.parameters) else NOTHING
            if asked.timeout_s is not None and (budget_s is None or asked.timeout_s < budget_s):
                budget_s = asked.timeout_s
            if budget_s is not None and budget_s <= 0:
                raise DeadlineExceeded("the deadline was over when the request came")
            now = self._clock.now()
            backlog = self._backlogs[engine.name]
            backlog.check(asked.priority, budget_s, now)
            self._admission.enter(len(data))
        except SynergaiError as error:
            metrics.answered(code_of(error).name)
            metrics.statistics.failed(error)
            raise
        self._count += 1
        job = Job(
            id=JobId(f"{self._prefix}{self._count:x}"),
            engine=engine.name,
            queries=1,
            arrival=now,
            deadline=math.inf if budget_s is None else now + budget_s,
            priority=asked.priority,
            tenant=asked.tenant or tenant,
            perishable=True,
            with_tensors=True,
        )
        request = Request(self, job, data, metrics, backlog, timings=asked.timings)
        backlog.enter(job)
        self._dispatcher.start(job, request, ready=1)
        return request

    def abandon(self, request: Request) -> None:
        """Nobody waits for the request any more: its place is free at once."""
        request.result.cancel()
        self._dispatcher.cancel(request.job.id)

    def leave(self, request: Request, error: SynergaiError | None, now: float) -> None:
        """Account for a request that has ended."""
        self._admission.leave(len(request.data))
        metrics, deadline = request.metrics, request.job.deadline
        if error is None:
            metrics.answered(_OK)
            if request.dispatched_at is not None:
                metrics.completed(request.estimate_s, now - request.dispatched_at)
        else:
            metrics.answered(code_of(error).name)
            metrics.statistics.failed(error, now - request.job.arrival)
        if error is None and now <= deadline:
            metrics.met()
        elif not isinstance(error, Cancelled) and not math.isinf(deadline):
            metrics.violated(max(0.0, now - deadline))
