"""The stages of a way through an engine, each of which is a job of its own in the scheduling core.

A query becomes ready in a stage as the stage before answers it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.dispatch.job_handler import JobHandler
from gateway.fleet.worker import SendInputs
from gateway.jobs.input_feed import PORTION_BYTES
from gateway.jobs.suspects import Suspects
from synergai.domain import Fault, JobState
from synergai.scheduling.events import QueriesReady

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.ways import Way
    from gateway.fleet.worker import AssignmentProgress, ConnectedWorker, HeldTensors
    from gateway.jobs.staged_query import StagedQuery
    from synergai.domain import Configuration, Job, WorkerId
    from synergai.protocol.request_codec import Buffer
    from synergai.scheduling.events import Assignment


@dataclass(slots=True, eq=False)
class Line:
    """The stages of a way, which queries pass in order.

    Attributes:
        jobs: one for each stage.
        on_answered: called with a stage, the queries that it has answered, each with its response
            or error, and the configuration.
        on_lost: called with a query whose tensors are lost.
        on_ended: called with the end of a stage that cannot complete.
    """

    way: Way
    jobs: Sequence[Job]
    dispatcher: Dispatcher
    on_dispatched: Callable[[Assignment, float], None]
    on_answered: Callable[[Stage, Sequence[tuple[StagedQuery, Buffer, str]], Configuration], None]
    on_lost: Callable[[StagedQuery], None]
    on_ended: Callable[[JobState, str, Fault], None]
    stages: Sequence[Stage] = field(init=False)

    def __post_init__(self) -> None:
        self.stages = [Stage(self, position, job) for position, job in enumerate(self.jobs)]

    @property
    def is_empty(self) -> bool:
        """Whether no query is on its way through it."""
        return all(stage.is_empty for stage in self.stages)

    @property
    def route(self) -> str:
        """Names of the workers that have answered queries, by stage."""
        return " ".join(",".join(each.workers) for each in self.stages if each.workers)

    @property
    def workers(self) -> int:
        """Number of workers that have answered queries, at least one for each stage."""
        return sum(max(1, len(each.workers)) for each in self.stages)

    def submit(self) -> None:
        """Begin with no query."""
        # The last stage first: of equally urgent jobs, a worker runs the one that came first.
        for stage in reversed(self.stages):
            self.dispatcher.submit(stage.job, stage, ready=0)

    def withdraw(self) -> None:
        """Run no more queries."""
        for stage in self.stages:
            self.dispatcher.suspend(stage.job.id)


class Stage(JobHandler):
    """One stage of a line; the dispatcher's handler of its job.

    Attributes:
        workers: those that have answered its queries, in the order of their first answers.
        added: number of queries that it has had.
    """

    inputs_follow = True

    def __init__(self, line: Line, position: int, job: Job) -> None:
        self.line = line
        self.position = position
        self.holds_outputs = position + 1 < len(line.way.engines)
        self.engine = line.way.engines[position]
        self.job = job
        self.workers: dict[WorkerId, None] = {}
        self.ended = False
        self.added = 0
        self._queries: dict[int, StagedQuery] = {}
        self._suspects = Suspects(self._fail)

    @property
    def is_empty(self) -> bool:
        """Whether no query waits for it or runs."""
        return not self._queries

    def add(self, queries: Sequence[StagedQuery]) -> None:
        """Let queries run, behind those that were added before."""
        for number, query in enumerate(queries, self.added):
            self._queries[number] = query
        self.added += len(queries)
        self.line.dispatcher.post(QueriesReady(self.job.id, self.added))

    def withdraw(self) -> list[StagedQuery]:
        """Stop; return the queries that it has not answered."""
        self.line.dispatcher.suspend(self.job.id)
        queries = list(self._queries.values())
        self._queries.clear()
        return queries

    def requests(self, _first: int, _count: int) -> Sequence[bytes]:
        """Return no requests: the inputs follow."""
        return ()

    def retries_alone(self, query: int) -> bool:
        """Return whether the query runs alone next, so that the crash does not count."""
        return self._suspects.retries_alone(query)

    def on_dispatched(self, worker: ConnectedWorker, assignment: Assignment, now: float) -> None:
        """Send the inputs in portions."""
        self.line.on_dispatched(assignment, now)
        inputs: list[bytes] = []
        suspects: list[int] = []
        pulls: list[tuple[int, HeldTensors]] = []
        size = 0
        for query in range(assignment.count):
            number = assignment.first + query
            data, pull = self._queries[number].data, self._queries[number].pull
            if inputs and size + len(data) > PORTION_BYTES:
                worker.orders.put(SendInputs(assignment.id, inputs, suspects, pulls))
                inputs, suspects, pulls, size = [], [], [], 0
            inputs.append(data)
            size += len(data)
            if pull is not None:
                pulls.append((query, pull))
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
        """Pass the answered queries on."""
        self.workers.setdefault(worker.id)
        answers, lost = [], []
        for offset, response in enumerate(responses, progress.done - len(responses)):
            number = progress.assignment.first + offset
            self._suspects.forget(number)
            error = progress.failed.get(offset, "")
            if not error:
                self._suspects.answered()
            query = self._queries.pop(number)
            query.drop_tensors(self.line.dispatcher)
            if offset in progress.lost:
                lost.append(query)
            else:
                query.pull = progress.held.get(offset)
                answers.append((query, response, error))
        self.line.on_answered(self, answers, progress.assignment.configuration)
        for query in lost:  # last, as this may end the run
            self.line.on_lost(query)

    def on_ended(self, state: JobState, reason: str, fault: Fault, _now: float) -> None:
        """End the run with a stage that cannot complete."""
        self.ended = True
        if state is not JobState.SUCCEEDED:
            # Later: the scheduler's commands are being executed.
            asyncio.get_running_loop().call_soon(self.line.on_ended, state, reason, fault)

    def _fail(self, reason: str) -> None:
        self.line.on_ended(JobState.FAILED, reason, Fault.UNSPECIFIED)
