"""Inference requests: jobs of one query whose client waits for the response."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gateway.calls.requests.parameters import (
    DEFAULT_OPTIONS,
    InferenceCall,
    RequestOptions,
    parse_options,
    serialised_timings,
)
from gateway.dispatch.job_handler import JobHandler, job_error
from gateway.entry.access.caller import UNRESTRICTED, Role
from gateway.fleet.stages import EngineInStages
from gateway.monitoring.counts import EngineMetrics, request_outcome
from gateway.monitoring.tracing import TracedRun
from synergai.domain import Engine, EngineName, Fault, Job, JobId
from synergai.errors import (
    Cancelled,
    DeadlineExceeded,
    EnginePending,
    EngineUnusable,
    Infeasible,
    NotFound,
    Overloaded,
    SynergaiError,
    Unavailable,
)
from synergai.names import split_variant
from synergai.wire.validation import check_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.entry.admission import Admission, TenantUsage
    from gateway.fleet.variants import FleetVariants
    from gateway.fleet.versions import Versions
    from gateway.fleet.worker import AssignmentProgress, ConnectedWorker
    from gateway.monitoring.metrics import Metrics
    from synergai.core.pipeline import HeldTensors
    from synergai.core.scheduling.events import Assignment
    from synergai.jobs import JobState
    from synergai.runtime.clock import Clock
    from synergai.wire.request_codec import Buffer

_MAX_NAME: Final = 200
"""Characters that are kept of the name of an unknown engine."""
_REFUSALS: Final = (DeadlineExceeded, EngineUnusable, NotFound, Overloaded, Unavailable)
"""Refusals that are remembered."""


class Admitted(Struct, eq=False):
    """What is known of a request while it is being admitted."""

    call: InferenceCall
    engine: EngineName
    tenant: str
    variant: str = ""
    options: RequestOptions = DEFAULT_OPTIONS
    usage: TenantUsage | None = None
    budget_s: float | None = None


class Request(JobHandler):
    """A request in flight; the dispatcher's handler of its job.

    Attributes:
        answered: its response has been handed over; how the job ends does not change that.
        data: the serialised ``ModelInferRequest``.
        held: its outputs, if the worker holds them; the response lacks them.
        on_response: takes the response in the turn of the event loop in which it arrives, instead
            of `result`.
        result: the serialised ``ModelInferResponse``, or the error for the client.
    """

    dispatched_at: float | None = None
    estimate_s = accuracy = _answered_at = 0.0
    run: TracedRun | None = None
    held: HeldTensors | None = None
    on_response: Callable[[Buffer], None] | None = None
    data: Buffer

    def __init__(
        self, inference: Inference, admitted: Admitted, job: Job, metrics: EngineMetrics
    ) -> None:
        self._inference = inference
        self._timings = admitted.options.timings
        self.job = job
        self.data = admitted.call.raw.data
        self.metrics = metrics
        self.usage = admitted.usage
        self.trace = admitted.call.request_id.trace
        self.result: asyncio.Future[Buffer] = inference.loop.create_future()

    def on_dispatched(self, _worker: ConnectedWorker, assignment: Assignment, now: float) -> None:
        if self.dispatched_at is None:
            self.dispatched_at = now
            self.metrics.requests.queue.observe(now - self.job.arrival)
        self.estimate_s = assignment.estimate_s

    def on_progress(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        responses: Sequence[Buffer],
        now: float,
    ) -> None:
        """Hand over the response, before the scheduler is told."""
        if self.answered:
            return
        self.answered, self._answered_at = True, now
        configuration = progress.assignment.configuration
        if configuration.variant or self.job.variant:
            self.accuracy = self._inference.variants.accuracy(
                self.job.engine, worker, configuration
            )
        if progress.held:
            self.held = progress.held.get(0)
        if not self.result.done():
            self._respond(responses[0], progress, now)
        elif self.held is not None:
            self._inference.dispatcher.drop(self.held)

    def on_ended(self, state: JobState, reason: str, fault: Fault, now: float) -> None:
        """Account for the request; if it was not answered, complete the client's call."""
        if self.answered:
            self._inference.release(self, None, self._answered_at)
            return
        error = job_error(self.job, state, reason, fault)
        self._inference.release(self, error, now)
        if not self.result.done():
            self.result.set_exception(error)

    def abandon(self) -> None:
        """Cancel the request, because its client is gone or has cancelled it."""
        self.result.cancel()
        self._inference.dispatcher.cancel(self.job.id)

    def _respond(self, response: Buffer, progress: AssignmentProgress, now: float) -> None:
        """Complete the client's call with the response, and account for its time."""
        assignment = progress.assignment
        queue_s = progress.dispatched_at - self.job.arrival
        worker_s = now - progress.dispatched_at
        # Workers report their compute time themselves; bound it by the elapsed time.
        compute_s = min(progress.compute_s, worker_s)
        configuration = assignment.configuration
        if self._timings:
            timings = serialised_timings(
                queue_s=queue_s,
                transfer_s=worker_s - compute_s,
                estimated_s=assignment.estimate_s,
                worker=assignment.worker_id,
                configuration=configuration,
            )
            response = b"".join((response, timings))
        if self.on_response is None:
            self.result.set_result(response)
        else:
            self.on_response(response)
        self.metrics.statistics.record_success(queue_s, worker_s - compute_s, compute_s)
        if variant := configuration.variant:
            statistics = self.metrics.variant(variant).statistics
            statistics.record_success(queue_s, worker_s - compute_s, compute_s)
        if self.trace is not None:
            self.run = TracedRun(
                worker=assignment.worker_id,
                configuration=str(configuration),
                dispatched_at=progress.dispatched_at,
                compute_s=compute_s,
                estimate_s=assignment.estimate_s,
            )


class Inference:
    """Runs inference requests as jobs of one query."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        versions: Versions,
        variants: FleetVariants,
        admission: Admission,
        metrics: Metrics,
        clock: Clock,
        epoch: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.dispatcher = dispatcher
        self._versions = versions
        self.variants = variants
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._prefix = f"r{epoch:x}-"
        self._count = 0
        metrics.add_counter(
            "unserved_requests",
            "Requests refused because no connected worker could run their engine.",
            lambda: self._unserved,
        )
        self._unserved = 0

    def begin_request(
        self,
        call: InferenceCall,
        *,
        charged: bool = False,
        pull: HeldTensors | None = None,
        holds_outputs: bool = False,
    ) -> Request:
        """Accept and enqueue a request.

        One that is `charged` was accepted before, so quotas count it no more, and a gateway that is
        stopping still runs it.

        Args:
            pull: its tensors, if a worker holds them.
            holds_outputs: the worker may hold its outputs, as they are the inputs of another stage.
        """
        admitted, job = self._admit(call, charged=charged, is_pulled=pull is not None)
        request = Request(self, admitted, job, self._metrics.engines[job.engine])
        request.pull, request.holds_outputs = pull, holds_outputs
        self.dispatcher.submit(job, request, ready=1)
        return request

    def _admit(
        self, call: InferenceCall, *, charged: bool, is_pulled: bool
    ) -> tuple[Admitted, Job]:
        """Check a request and take room for it; return what is known of it, and its job."""
        self.dispatcher.flush()  # requests that were answered count no longer
        message, caller, tenant = call.raw.parsed.message, call.caller, call.tenant
        name, wanted = message.model_name, message.model_version
        # Before the engine is looked up: its absence is not for everyone to know.
        if caller is not UNRESTRICTED:
            tenant = caller.tenant_of(tenant, Role.INFER, engine=name)
        admitted = Admitted(call, EngineName(name[:_MAX_NAME]), tenant)
        try:
            # Before as well: agents leave a gateway that is stopping, and their engines with them.
            if not charged:
                self._admission.check_open()
            if wanted or (engine := self._versions.found.get(name)) is None:
                engine = self._versions.find(name, wanted, message.id or call.request_id.job)
        except (EnginePending, EngineInStages):
            raise  # not rejected yet: see `held` and `staged`
        except SynergaiError as error:
            # Unknown names share one label: clients must not be able to create series.
            self._metrics.engines["unknown"].requests.count(request_outcome(error))
            self._unserved += isinstance(error, Unavailable)
            self._note_refused(admitted, error)
            raise
        admitted.engine = engine.name
        if "." in wanted:
            admitted.variant = split_variant(wanted)[1]
        try:
            self._check(admitted, engine, charged=charged, is_pulled=is_pulled)
            job = self._describe(admitted)
            if admitted.budget_s is not None:
                self._check_feasible(job, admitted.budget_s)
            self._admission.acquire(len(call.raw.data), accepted=True)
        except SynergaiError as error:
            if admitted.usage is not None:
                admitted.usage.end_request()
            self.count_rejected(admitted, error)
            raise
        return admitted, job

    def _check(self, admitted: Admitted, engine: Engine, *, charged: bool, is_pulled: bool) -> None:
        """Check the options and tensors of a request, and charge its tenant for it."""
        call, options = admitted.call, admitted.options
        caller, header = call.caller, call.raw.parsed
        budget_s = call.budget_s
        if parameters := header.message.parameters:
            options = admitted.options = parse_options(parameters)
            budget_s = options.shorter_budget_s(budget_s)
            if options.tenant:
                admitted.tenant = caller.tenant_of(options.tenant, Role.INFER, engine=engine.name)
        if options.priority:
            caller.check_priority(options.priority)
        size = len(call.raw.data)
        admitted.usage = self._admission.start_request(admitted.tenant, size, charged=charged)
        template = header.template
        if not is_pulled and (template is None or template.validated_for is not engine):
            check_header(header, engine)
        if options.min_accuracy:
            self._versions.check_floor(engine.name, options.min_accuracy, admitted.variant)
        if budget_s is not None and budget_s <= 0:
            raise DeadlineExceeded("the deadline had passed when the request arrived")
        admitted.budget_s = budget_s

    def _describe(self, admitted: Admitted) -> Job:
        """Return the job of a request, as far as it is known: it may have been refused."""
        now, options, request_id = self._clock.now(), admitted.options, admitted.call.request_id
        return Job(
            id=request_id.job,
            engine=admitted.engine,
            queries=1,
            arrival=now,
            deadline=math.inf if admitted.budget_s is None else now + admitted.budget_s,
            priority=options.priority,
            tenant=admitted.tenant,
            perishable=True,
            with_tensors=True,
            variant=admitted.variant,
            min_accuracy=options.min_accuracy,
            client_id=request_id.client,
        )

    def new_id(self) -> JobId:
        self._count += 1
        return JobId(f"{self._prefix}{self._count:x}")

    def count_rejected(self, admitted: Admitted, error: SynergaiError) -> None:
        """Count and remember a request for a known engine that was rejected."""
        metrics, outcome = self._metrics.engines[admitted.engine], request_outcome(error)
        metrics.requests.count(outcome)
        metrics.statistics.record_failure(error)
        self._metrics.tenants.count_request(admitted.tenant, outcome)
        self._unserved += isinstance(error, EnginePending)
        self._note_refused(admitted, error)

    def expected_answer_s(self, engine: EngineName) -> float | None:
        """Return the time until a new request would be answered at the earliest, if known."""
        job = Job(
            id=JobId(""),
            engine=engine,
            queries=1,
            arrival=self._clock.now(),
            perishable=True,
            with_tensors=True,
        )
        return self.dispatcher.core.expected_answer_s(job, job.arrival)

    def count_staged(self, engine: str, error: SynergaiError | None, seconds: float) -> None:
        """Count a request for an engine in stages, whose requests count for themselves."""
        metrics = self._metrics.engines[engine]
        metrics.requests.count(request_outcome(error))
        if error is None:
            metrics.statistics.record_success(0.0, seconds, 0.0)
        else:
            metrics.statistics.record_failure(error, seconds)

    def _check_feasible(self, job: Job, budget_s: float) -> None:
        expected_s = self.dispatcher.core.expected_answer_s(job, job.arrival)
        if expected_s is not None and expected_s > budget_s:
            least_s = self.dispatcher.core.least_answer_s(job.engine)
            raise Infeasible(job.engine, expected_s, least_s, budget_s)

    def _note_refused(self, admitted: Admitted, error: SynergaiError) -> None:
        """Let the core remember a refusal, unless the request itself is wrong."""
        if isinstance(error, _REFUSALS):
            job, infeasible = self._describe(admitted), isinstance(error, Infeasible)
            self.dispatcher.core.refused(job, str(error), job.arrival, infeasible=infeasible)

    def release(self, request: Request, error: SynergaiError | None, now: float) -> None:
        """Free the room of an ended request and count its outcome."""
        self._admission.release(len(request.data))
        if request.usage is not None:
            request.usage.end_request()
        metrics, deadline = request.metrics, request.job.deadline
        late = now > deadline
        outcome = request_outcome(error, late=late)
        metrics.requests.count(outcome)
        self._metrics.tenants.count_request(request.job.tenant, outcome)
        trace_id = ""
        if request.trace is not None:
            trace_id = request.trace.end(request.job, request.run, error, now)
        if error is None:
            if request.dispatched_at is not None:
                run_s = now - request.dispatched_at
                metrics.requests.observe_run(request.estimate_s, run_s)
                if trace_id:
                    metrics.requests.run.show(run_s, trace_id, self._clock.to_unix(now))
            if request.accuracy:
                metrics.count_answer(request.accuracy, request.job.min_accuracy, late=late)
        else:
            metrics.statistics.record_failure(error, now - request.job.arrival)
        failed = error is not None and not isinstance(error, Cancelled)
        if deadline < math.inf and (failed or (error is None and late)):
            metrics.requests.count_violation(max(0.0, now - deadline))
