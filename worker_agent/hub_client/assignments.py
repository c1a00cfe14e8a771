"""Assignments of one registration: gateway orders to work items, outcomes to reports."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.domain import EngineName, Fault, Outcome, Session
from synergai.errors import InvalidInput
from synergai.protocol import converters
from synergai.protocol.work_messages import Reports
from synergai.v1 import hub_pb2
from worker_agent.ipc.frames import Tally
from worker_agent.runner.inputs import InputQueue
from worker_agent.runner.work_item import WorkItem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.domain import Configuration
    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.work_messages import Orders
    from worker_agent.runner.reporting import Failure, WorkHandler
    from worker_agent.runner.runner import Runner

_MAX_DETAIL: Final = 1000


class Assignments:
    """Outstanding assignments of one registration.

    `read_input` blocks, and raises `InvalidInput` for an input that cannot be read.
    """

    def __init__(
        self,
        runner: Runner,
        send: Callable[[Reports], None],
        configurations: Sequence[Configuration],
        read_input: Callable[[EngineName, str], bytes],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._send = send
        self._configurations = configurations
        self._clock = clock
        self._read_input = read_input
        self._items: dict[int, WorkItem] = {}

    def handle_orders(self, orders: Orders) -> None:
        """Start and stop assignments as ordered by the gateway."""
        for assignment, requests in orders.assignments:
            self._assign(assignment, requests)
        for message, inputs in orders.inputs:
            work = self._items.get(message.assignment_id)
            if work is not None and work.inputs is not None:
                work.inputs.receive(inputs, message.suspects)
        for assignment_id in orders.stops:
            if (work := self._items.get(assignment_id)) is not None:
                self._runner.stop(work)
        for assignment_id in orders.aborts:
            if (work := self._items.get(assignment_id)) is not None:
                self._runner.stop(work, abort=True)

    def abandon_all(self) -> None:
        """Stop all assignments without reporting; the gateway has reassigned them."""
        # Abandoning an assignment may end others behind it, which removes them from the dictionary.
        for work in list(self._items.values()):
            self._runner.abandon(work)
            _close_inputs(work)
        self._items.clear()

    def _assign(self, assignment: hub_pb2.Assignment, requests: Sequence[Buffer]) -> None:
        reporter = _AssignmentReporter(assignment.id, self._send, self._remove)
        try:
            work = _work_item(assignment, requests, reporter, self._clock())
        except InvalidInput as error:
            reporter.on_ended(Outcome.FAILED, Tally(), (), Fault.BAD_INPUT, str(error))
            return
        configuration = work.session.configuration
        if configuration.base not in self._configurations:
            available = "; ".join(map(str, self._configurations))
            detail = (
                f"configuration {configuration} is not available on this worker, which has: "
                f"{available}"
            )
            fault = Fault.CONFIGURATION_UNUSABLE
            reporter.on_ended(Outcome.FAILED, Tally(), (), fault, detail)
            return
        if assignment.inputs_follow:
            read = partial(self._read_input, work.session.engine)
            work.inputs = InputQueue(read, self._runner.resume, work.count)
        self._items[assignment.id] = work
        self._runner.add(work)

    def _remove(self, assignment_id: int) -> None:
        work = self._items.pop(assignment_id, None)
        if work is not None:
            _close_inputs(work)


def _close_inputs(work: WorkItem) -> None:
    if work.inputs is not None:
        work.inputs.close()


def _work_item(
    assignment: hub_pb2.Assignment, requests: Sequence[Buffer], handler: WorkHandler, now: float
) -> WorkItem:
    if not assignment.count or len(requests) not in (0, assignment.count):
        raise InvalidInput(
            f"an assignment of {assignment.count} queries came with {len(requests)} requests"
        )
    configuration = converters.configuration_from_proto(assignment.configuration)
    return WorkItem(
        session=Session(EngineName(assignment.engine), configuration),
        handler=handler,
        requests=requests,
        first=assignment.first,
        count=assignment.count,
        job=assignment.job_id,
        batch_times=converters.batch_times_from_proto(assignment.batch_s),
        due=now + assignment.budget_s if assignment.HasField("budget_s") else math.inf,
        concurrent=assignment.concurrent and assignment.count == 1 and bool(requests),
    )


class _AssignmentReporter:
    """Sends the reports of one assignment; implements `WorkHandler`."""

    def __init__(
        self, assignment_id: int, send: Callable[[Reports], None], on_ended: Callable[[int], None]
    ) -> None:
        self._id = assignment_id
        self._send = send
        self._on_ended = on_ended
        self._failures: list[hub_pb2.InputFailure] = []

    def on_input_failed(self, query: int, failure: Failure) -> None:
        """Note a failure for the next report."""
        detail = failure.detail[:_MAX_DETAIL]
        self._failures.append(hub_pb2.InputFailure(query=query, detail=detail))

    def on_started(self, setup_s: float) -> None:
        """Report that the setup is complete."""
        started = hub_pb2.Started(assignment_id=self._id, setup_s=setup_s)
        self._send(Reports(started=(started,)))

    def on_progress(self, tally: Tally, responses: Sequence[bytes]) -> None:
        """Report progress and the responses since the previous report."""
        self._send(Reports(progress=((self._progress(tally), responses),)))

    def on_ended(
        self,
        outcome: Outcome,
        tally: Tally,
        responses: Sequence[bytes],
        fault: Fault = Fault.UNSPECIFIED,
        detail: str = "",
    ) -> None:
        """Report the outcome."""
        ended = hub_pb2.Ended(
            outcome=hub_pb2.Outcome.ValueType(outcome.value),
            fault=hub_pb2.Fault.ValueType(fault.value),
            detail=detail,
            progress=self._progress(tally),
        )
        self._send(Reports(ended=((ended, responses),)))
        self._on_ended(self._id)

    def _progress(self, tally: Tally) -> hub_pb2.Progress:
        progress = hub_pb2.Progress(
            assignment_id=self._id,
            done=tally.done,
            labelled=tally.labelled,
            correct=tally.correct,
            compute_s=tally.compute_s,
            batch=tally.batch,
        )
        if self._failures:
            failures = [each for each in self._failures if each.query < tally.done]
            del self._failures[: len(failures)]
            progress.failures.extend(failures)
        return progress
