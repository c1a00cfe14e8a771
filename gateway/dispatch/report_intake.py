"""Intake of the workers' reports: validates them and turns them into events and results.

What a report says is applied at once to the worker's assignments in flight, and its results go to
the job's handler. The scheduling core is told by the dispatcher, for a durable job once the journal
has recorded the results, and for a request once its response is on the way. It learns of a stopped
assignment that leaves queries at once.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn

from google.protobuf.message import DecodeError

from gateway.fleet.worker import AssignmentProgress, CompletedQueries, ConnectedWorker
from synergai.core.pipeline import HeldTensors
from synergai.core.scheduling.events import AssignmentEnded, AssignmentStarted, QueriesDone
from synergai.domain import AssignmentId, Fault, Outcome
from synergai.wire.agent_messages import (
    MAX_SECONDS,
    ProtocolViolation,
    checked_seconds,
    printable_detail,
)
from synergai.wire.limits import MAX_HELD_BYTES
from synergai.wire.request_codec import check_response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.dispatch.job_handler import JobHandler
    from gateway.monitoring.metrics import Metrics
    from synergai.runtime.clock import Clock
    from synergai.v1 import hub_pb2
    from synergai.wire.request_codec import Buffer
    from synergai.wire.work_messages import Reports

# Aliases for the path of every report: accessing an enum member by name is slow in Python 3.11.
_COMPLETED: Final = Outcome.COMPLETED
_NO_FAULT: Final = Fault.UNSPECIFIED
_AT_INPUT: Final = (Fault.DIED_AT_INPUT, Fault.CRASHED)
_NONE: Final[Mapping[int, str]] = MappingProxyType({})
_NONE_LOST: Final[frozenset[int]] = frozenset()
_NOTHING_HELD: Final[Mapping[int, HeldTensors]] = MappingProxyType({})
_MAX_TOKEN: Final = 64


class ReportIntake:
    """Intake of the workers' reports."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock, metrics: Metrics) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._metrics = metrics

    def apply(self, worker: ConnectedWorker, reports: Reports) -> None:
        for started in reports.started:
            self.apply_started(worker, started)
        for progress, responses in reports.progress:
            self.apply_progress(worker, progress, responses)
        for ended, responses in reports.ended:
            self.apply_ended(worker, ended, responses)

    def apply_started(self, worker: ConnectedWorker, report: hub_pb2.Started) -> None:
        setup_s = checked_seconds(report.setup_s, "setup_s")
        if self._in_flight(worker, report.assignment_id) is not None:
            self._dispatcher.post(AssignmentStarted(AssignmentId(report.assignment_id), setup_s))

    def apply_progress(
        self, worker: ConnectedWorker, report: hub_pb2.Progress, responses: Sequence[Buffer] = ()
    ) -> None:
        progress = self._in_flight(worker, report.assignment_id)
        if progress is None:
            return
        handler = self._dispatcher.handler(progress.assignment.job_id)
        self._record(worker, progress, report, responses, handler)
        done = QueriesDone(progress.assignment.id, progress.done, report.compute_s)
        self._dispatcher.post(done, after_pending=handler is not None and handler.durable)

    def apply_ended(
        self, worker: ConnectedWorker, report: hub_pb2.Ended, responses: Sequence[Buffer] = ()
    ) -> None:
        reported = report.progress
        progress = self._in_flight(worker, reported.assignment_id)
        if progress is None:
            return
        assignment = progress.assignment
        handler = self._dispatcher.handler(assignment.job_id)
        outcome, done = _OUTCOMES.get(report.outcome), reported.done
        if outcome is None or (outcome is _COMPLETED and done != assignment.count):
            text = f"assignment {assignment.id} cannot have this outcome after {done} queries"
            self._fail_for_violation(worker, progress, handler, ProtocolViolation(text))
        self._record(worker, progress, reported, responses, handler)
        del worker.in_flight[assignment.id]
        now = self._clock.now()
        if not assignment.concurrent:  # a concurrent request leaves other work running
            worker.free_since = now
        if outcome is _COMPLETED and assignment.estimate_s > 0.0:
            count_run(worker, assignment.estimate_s, now - progress.dispatched_at)
        fault = _FAULTS.get(report.fault, _NO_FAULT)
        if fault in _AT_INPUT:
            if handler is not None and handler.retries_alone(assignment.first + progress.done):
                outcome = Outcome.STOPPED
            if fault is Fault.DIED_AT_INPUT:
                fault = Fault.HOST_DIED
        if fault is Fault.ENGINE_BROKEN and assignment.engine in worker.being_removed:
            # A job waits for another worker; the client of a request may send it again.
            waits = handler is not None and (handler.durable or handler.inputs_follow)
            fault = Fault.UNKNOWN_ENGINE if waits else Fault.HOST_DIED
        ended = AssignmentEnded(
            assignment.id,
            progress.done,
            outcome,
            fault,
            report.detail and printable_detail(report.detail),
            progress.compute_s,
            progress.batch,
        )
        if handler is not None and handler.answered:
            self._dispatcher.defer(ended)
            return
        # A worker may have nothing to run but the rest of a stopped assignment, so the rest does
        # not wait for the disk. If the results cannot be recorded, the job is paused.
        continues = (
            outcome is Outcome.STOPPED and fault is _NO_FAULT and progress.done < assignment.count
        )
        durable = handler is not None and handler.durable
        self._dispatcher.post(ended, after_pending=durable and not continues)

    def _in_flight(self, worker: ConnectedWorker, assignment_id: int) -> AssignmentProgress | None:
        progress = worker.in_flight.get(AssignmentId(assignment_id))
        if progress is None:
            self._metrics.stale_reports += 1
        return progress

    def _record(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        report: hub_pb2.Progress,
        responses: Sequence[Buffer],
        handler: JobHandler | None,
    ) -> None:
        """Record newly completed queries, and hand their responses to the job."""
        with_tensors = None if handler is None else handler.with_tensors
        computed_s = progress.compute_s
        try:
            progress.held = _held(worker, progress, report) if report.held else _NOTHING_HELD
            queries = apply_progress(progress, report, responses, with_tensors=with_tensors)
        except ProtocolViolation as violation:
            self._fail_for_violation(worker, progress, handler, violation)
        if not queries:
            return
        now = self._clock.now()
        if handler is not None:
            handler.on_progress(worker, progress, responses, now)
        else:
            for held in progress.held.values():
                self._dispatcher.drop(held)
        compute_s = max(0.0, progress.compute_s - computed_s)
        if progress.assignment.count > 1:
            compute_s *= progress.batch  # which each query of a request reports, but none of a job
        completed = CompletedQueries(
            engine=progress.assignment.engine,
            queries=queries,
            compute_s=compute_s,
            batch=progress.batch,
            at=now,
            variant=progress.assignment.configuration.variant,
        )
        _count(worker, completed)
        self._metrics.engines[completed.engine].record(completed)

    def _fail_for_violation(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        handler: JobHandler | None,
        violation: ProtocolViolation,
    ) -> NoReturn:
        """Fail the assignment, so that a misbehaving worker cannot block a job forever."""
        del worker.in_flight[progress.assignment.id]
        failed = AssignmentEnded(
            progress.assignment.id,
            progress.done,
            Outcome.FAILED,
            Fault.HOST_DIED,
            f"worker {worker.id!r} broke the protocol: {violation}",
        )
        self._dispatcher.post(failed, after_pending=handler is not None and handler.durable)
        raise violation


_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_FAULTS = {fault.value: fault for fault in Fault}


def count_run(worker: ConnectedWorker, estimate_s: float, run_s: float) -> None:
    """Compare the time that a completed assignment took with its estimate."""
    worker.run_s += run_s
    worker.estimated_run_s += estimate_s
    worker.estimate_error_s += abs(run_s - estimate_s)


def _count(worker: ConnectedWorker, completed: CompletedQueries) -> None:
    busy_s = completed.compute_s / completed.batch
    computed_s, queries = worker.computed.get(completed.engine, (0.0, 0))
    worker.computed[completed.engine] = computed_s + busy_s, queries + completed.queries
    worker.queries_done += completed.queries
    worker.busy_s += busy_s


def apply_progress(
    progress: AssignmentProgress,
    report: hub_pb2.Progress,
    responses: Sequence[Buffer],
    *,
    with_tensors: bool | None,
) -> int:
    """Apply a report to an assignment's progress; return how many queries are newly completed.

    The progress is unchanged if an error is raised. With None for `with_tensors`, the job has ended
    and responses are ignored.
    """
    assignment = progress.assignment
    done, labelled, correct = report.done, report.labelled, report.correct
    compute_s, batch = report.compute_s, report.batch
    new = done - progress.done
    if new < 0 or done > assignment.count:
        raise ProtocolViolation(
            f"assignment {assignment.id} of {assignment.count} queries cannot be at "
            f"{done} after {progress.done}"
        )
    if not progress.labelled <= labelled <= done:
        raise ProtocolViolation(
            f"assignment {assignment.id} cannot have {labelled} labelled queries"
        )
    if not progress.correct <= correct <= labelled:
        raise ProtocolViolation(f"assignment {assignment.id} cannot have {correct} correct answers")
    times = assignment.batch_times
    if batch > (1 if times is None else times.max_rows):
        raise ProtocolViolation(
            f"assignment {assignment.id} cannot have been in a batch of {batch} queries"
        )
    if not 0.0 <= compute_s <= MAX_SECONDS:
        checked_seconds(compute_s, f"compute_s of assignment {assignment.id}")
    if with_tensors is not None:
        expected = new if with_tensors else 0
        if len(responses) != expected:
            raise ProtocolViolation(
                f"assignment {assignment.id} has {len(responses)} responses for {expected} queries"
            )
        for response in responses:
            _check_response(response, assignment.id)
    if failures := report.failures:
        progress.failed = _failures(report, progress.done, assignment.id)
        progress.lost = frozenset(each.query for each in failures if each.lost)
    else:
        progress.failed, progress.lost = _NONE, _NONE_LOST
    progress.done = done
    progress.labelled = labelled
    progress.correct = correct
    progress.compute_s = compute_s
    progress.batch = batch or 1
    return new


def _failures(report: hub_pb2.Progress, before: int, assignment_id: int) -> dict[int, str]:
    failed = {}
    for failure in report.failures:
        if not before <= failure.query < report.done:
            raise ProtocolViolation(
                f"assignment {assignment_id} cannot report a failure of query {failure.query}"
            )
        failed[failure.query] = printable_detail(failure.detail) or "the input failed"
    return failed


def _held(
    worker: ConnectedWorker, progress: AssignmentProgress, report: hub_pb2.Progress
) -> dict[int, HeldTensors]:
    held = {}
    for each in report.held:
        if (
            not (progress.holds_outputs and progress.done <= each.query < report.done)
            or not 0 < len(each.token) <= _MAX_TOKEN
            or each.size > MAX_HELD_BYTES
        ):
            raise ProtocolViolation(
                f"assignment {progress.assignment.id} cannot hold the outputs of query {each.query}"
            )
        held[each.query] = HeldTensors(
            worker.id, each.token, each.size, worker.peer_address, worker.peer_certificate
        )
    return held


def _check_response(response: Buffer, assignment_id: int) -> None:
    try:
        check_response(response)
    except DecodeError:
        raise ProtocolViolation(
            f"assignment {assignment_id} has a response that is not a ModelInferResponse"
        ) from None
