"""The queue of one stage of a job: its visits wait here until they are given to a worker.

Which visits there are, and when, is up to `synergai.core.pipeline`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gateway.dispatch.job_handler import JobHandler
from gateway.fleet.worker import AssignmentProgress, ConnectedWorker, SendInputs
from gateway.jobs.input_feed import PORTION_BYTES, Suspects
from synergai.core.scheduling.events import Assignment, QueriesReady
from synergai.domain import Configuration, Fault, Job, WorkerId
from synergai.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.dispatch.dispatcher import Dispatcher
    from synergai.core.pipeline import HeldTensors, Visit
    from synergai.core.route import Route
    from synergai.wire.request_codec import Buffer

    OnAnswered: TypeAlias = Callable[
        ["StageQueue", Sequence["StageAnswer"], Sequence[Visit], Configuration], None
    ]
    """Called with the answers to some visits, and those whose tensors are lost."""


class StageAnswer(NamedTuple):
    """What a worker has answered to a visit: a response, whose tensors it may hold, or an error."""

    visit: Visit
    response: Buffer
    error: str
    held: HeldTensors | None


class StageQueue(JobHandler):
    """The queue of one stage of an open route; the dispatcher's handler of its job.

    Attributes:
        number: that of the route.
        workers: those that have answered its visits, in the order of their first answers.
        added: number of visits that it has had.
    """

    inputs_follow = True

    def __init__(
        self,
        number: int,
        route: Route,
        position: int,
        job: Job,
        dispatcher: Dispatcher,
        on_dispatched: Callable[[Assignment, float], None],
        on_answered: OnAnswered,
        on_ended: Callable[[JobState, str, Fault], None],
    ) -> None:
        self.number = number
        self.route = route
        self.position = position
        self.engine = route.engines[position]
        self.holds_outputs = not route.is_last(position)
        self.job = job
        self.workers: dict[WorkerId, None] = {}
        self.added = 0
        self.ended = False
        self._dispatcher = dispatcher
        self._on_dispatched = on_dispatched
        self._on_answered = on_answered
        self._on_ended = on_ended
        self._waiting: dict[int, tuple[Visit, bytes]] = {}
        self._suspects = Suspects(lambda why: on_ended(JobState.FAILED, why, Fault.UNSPECIFIED))

    @property
    def is_empty(self) -> bool:
        """Whether no visit waits or runs."""
        return not self._waiting

    def add(self, visits: Sequence[tuple[Visit, bytes]]) -> None:
        """Let visits run with their inputs, behind those that were added before."""
        self._waiting.update(enumerate(visits, self.added))
        self.added += len(visits)
        self._dispatcher.post(QueriesReady(self.job.id, self.added))

    def withdraw(self) -> None:
        """Run nothing more."""
        self._dispatcher.suspend(self.job.id)
        self._waiting.clear()

    def retries_alone(self, query: int) -> bool:
        return self._suspects.retries_alone(query)

    def on_dispatched(self, worker: ConnectedWorker, assignment: Assignment, now: float) -> None:
        self._on_dispatched(assignment, now)
        inputs: list[bytes] = []
        suspects: list[int] = []
        pulls: list[tuple[int, HeldTensors]] = []
        size = 0
        for query in range(assignment.count):
            number = assignment.first + query
            visit, data = self._waiting[number]
            if inputs and size + len(data) > PORTION_BYTES:
                worker.orders.put(SendInputs(assignment.id, inputs, suspects, pulls))
                inputs, suspects, pulls, size = [], [], [], 0
            inputs.append(data)
            size += len(data)
            if visit.tensors is not None:
                pulls.append((query, visit.tensors))
            if number in self._suspects:
                suspects.append(query)
        worker.orders.put(SendInputs(assignment.id, inputs, suspects, pulls))

    def on_progress(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        responses: Sequence[Buffer],
        _now: float,
    ) -> None:
        self.workers.setdefault(worker.id)
        answers, lost = [], []
        for offset, response in enumerate(responses, progress.done - len(responses)):
            number = progress.assignment.first + offset
            self._suspects.forget(number)
            error = progress.failed.get(offset, "")
            if not error:
                self._suspects.answered()
            visit, _ = self._waiting.pop(number)
            if offset in progress.lost:
                lost.append(visit)
            else:
                held = progress.held.get(offset)
                answers.append(StageAnswer(visit, response, error, held))
        self._on_answered(self, answers, lost, progress.assignment.configuration)

    def on_ended(self, state: JobState, reason: str, fault: Fault, _now: float) -> None:
        """End the job with a stage that cannot complete."""
        self.ended = True
        if state is not JobState.SUCCEEDED:
            # Later: the scheduler's commands are being executed.
            asyncio.get_running_loop().call_soon(self._on_ended, state, reason, fault)
