"""One run of a job through the stages of its engine.

Each stage is a job of its own in the scheduling core. A query is ready in a stage once the stage
before has answered it, so that no worker waits for another one. Tensors between stages are in
memory only: queries that are not recorded run again after a restart. Workers with a peer port hold
their outputs, which the worker of the next stage pulls from them. A query that leaves its engine at
an early exit is recorded in its turn, like one behind all stages.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gateway.fleet.routes import asked_of_exit
from gateway.fleet.stages import tensor_bytes
from gateway.jobs.input_feed import TensorRoom
from gateway.jobs.stage_queue import StageAnswer, StageQueue
from gateway.jobs.staged_feed import LEAST_QUERIES, StagedFeed, StagedQuery
from gateway.journal.data_store import InputResult
from gateway.journal.job_record import RecordedExecution
from synergai.core.pipeline import Answer, Command, Drop, Fail, Pipeline, Ready, Record, Visit
from synergai.core.scheduling.state.jobs import Ranges
from synergai.domain import AssignmentId, Configuration, Engine, Fault, Job, JobId, WorkerId
from synergai.errors import InternalError
from synergai.jobs import JobState
from synergai.wire.request_codec import RequestDecoder
from synergai.wire.stages import as_whole, parse_stage_response
from synergai.wire.validation import CORRECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.dispatch.job_routes import JobRoutes
    from gateway.journal.record_log import RecordLog
    from synergai.core.route import Route
    from synergai.core.scheduling.events import Assignment
    from synergai.runtime.clock import Clock

    RecordRange: TypeAlias = Callable[
        ["RecordedRange", RecordedExecution, Sequence[InputResult], int], None
    ]
    """Records a range with the results that are new, which hold so many bytes."""

_OWN_IDS: Final = 39
"""Bit of the ids of recorded ranges that are no assignments; the epoch is above."""
MOST_LOSSES: Final = 10
"""Times that a query begins again after the worker that held its tensors was lost."""


class StagedJobs:
    """What all jobs in stages share.

    Attributes:
        room: memory for their inputs and tensors.
        ids: those of ranges that are recorded.
    """

    def __init__(
        self, dispatcher: Dispatcher, routes: JobRoutes, clock: Clock, epoch: int, memory_bytes: int
    ) -> None:
        self.dispatcher = dispatcher
        self.routes = routes
        self.clock = clock
        self.room = TensorRoom(memory_bytes)
        self.ids = map(AssignmentId, count((epoch << (_OWN_IDS + 1)) | (1 << _OWN_IDS)))


class RecordedRange(Struct, frozen=True):
    """Queries that are recorded under one id."""

    id: AssignmentId
    count: int


class StagedJob:
    """Drives the queries of a job, from its start until it ends or is paused.

    Args:
        job: the job as the scheduling core would see it if its engine was whole.
        done: ranges that are recorded.
        log: its inputs; None for samples.
        numbers: each stage takes one of them for the id of its job.
        record: records results, and then calls `recorded`.
        on_dispatched: called with each assignment of a stage.
        on_ended: called with the end of the job, in which the run has to be closed.
    """

    def __init__(
        self,
        shared: StagedJobs,
        route: Route,
        job: Job,
        done: Sequence[tuple[int, int]],
        log: RecordLog | None,
        numbers: Iterator[int],
        *,
        record: RecordRange,
        on_dispatched: Callable[[Assignment, float], None],
        on_ended: Callable[[JobState, str, Fault, float], None],
    ) -> None:
        pending = Ranges.complement(done, job.queries)
        self._pipeline = Pipeline(route, MOST_LOSSES, keeps_inputs=False)
        self.route = route
        self._on_dispatched = on_dispatched
        self._dispatcher = shared.dispatcher
        self._routes = shared.routes.routes
        self._ids = shared.ids
        self._clock = shared.clock
        self._record_range = record
        self._on_ended = on_ended
        self._job = job
        self._of_samples = log is None
        self._numbers = numbers
        self._left = pending.total
        self._number = 0
        self._open: dict[int, Sequence[StageQueue]] = {}  # by number of the route
        self._queries: dict[int, StagedQuery] = {}
        largest_bytes = max(tensor_bytes(stage.outputs) for stage in route.engines)
        self._feed = StagedFeed(
            job, pending, log, shared.room, largest_bytes, self._begin, self.fail
        )
        self._decoder = RequestDecoder()
        self._closed = False
        self._recorded_at = self._clock.now()
        self._interval_s = 0.0  # between results; 0 until there are any
        self._range: RecordedExecution | None = None
        self._range_id = AssignmentId(0)

    def start(self) -> None:
        if not self._left:
            self.end(JobState.SUCCEEDED, "", Fault.UNSPECIFIED)
            return
        self._open_queues()
        self._feed.start()

    def use(self, route: Route) -> None:
        """Let queries that no stage has answered take a route; the others stay on theirs."""
        former, self.route = self._queues, route
        self._number += 1
        self._open_queues()
        former[0].withdraw()
        self._execute(self._pipeline.route_changed(route))
        self._close_former()

    @property
    def engines(self) -> Iterator[Engine]:
        """Stages that queries run in, those of former routes included."""
        return (queue.engine for queues in self._open.values() for queue in queues)

    def close(self) -> None:
        """Withdraw all queries that are not recorded."""
        self._closed = True
        for queues in self._open.values():
            for queue in queues:
                queue.withdraw()
        self._feed.close()
        self._execute(self._pipeline.closed())

    def fail(self, reason: str) -> None:
        self.end(JobState.FAILED, reason, Fault.UNSPECIFIED)

    def end(self, state: JobState, reason: str, fault: Fault) -> None:
        """End the job, unless the run is closed."""
        if not self._closed:
            self._on_ended(state, reason, fault, self._clock.now())

    def recorded(self, queries: int, room_bytes: int) -> None:
        """Make room for other queries, as so many are recorded; end with the last one."""
        if self._closed:
            return
        self._feed.recorded(queries, room_bytes)
        self._left -= queries
        if not self._left:
            self.end(JobState.SUCCEEDED, "", Fault.UNSPECIFIED)

    def expected_completion(self, now: float) -> float | None:
        """Return when the last stage is expected to complete; None if that is unknown.

        Each one is expected to get the queries that have not left before.
        """
        last, share = now, 1.0
        for queue in self._queues:
            if not queue.ended:
                at = self._dispatcher.core.expected_completion(queue.job.id, now)
                if at is None:
                    return None
                last = max(last, now + share * (at - now))
            if self.route.may_leave(queue.position):
                share *= 1 - self._routes.rates.rate(queue.engine)
        return last

    @property
    def _queues(self) -> Sequence[StageQueue]:
        """Those of the route that queries take when they begin."""
        return self._open[self._number]

    # --- events -----------------------------------------------------------------------------

    def _begin(self, queries: Sequence[StagedQuery]) -> None:
        self._queries.update((query.index, query) for query in queries)
        self._execute(self._pipeline.begun(queries[0].index, len(queries)))

    def _answered(
        self,
        queue: StageQueue,
        found: Sequence[StageAnswer],
        lost: Sequence[Visit],
        configuration: Configuration,
    ) -> None:
        """Let queries go on, record their results, or let them run again."""
        queues = self._open[queue.number]
        try:
            final = [not self._goes_on(queue, each) for each in found]
        except InternalError as fault:
            self.fail(str(fault))  # which closes the pipeline, so that it just drops the tensors
            final = [True] * len(found)
        answers = [
            Answer(each.visit.id, is_final, each.held)
            for each, is_final in zip(found, final, strict=True)
        ]
        for queries in self._execute(self._pipeline.answered(answers)):
            self._record_results(queries, queues, configuration)
        if self._closed:
            return
        has_left = any(
            is_final and not each.error for each, is_final in zip(found, final, strict=True)
        )
        if has_left or len(queues) - queue.position <= 2:
            self._feed.set_sized()
        self._feed.workers = sum(max(1, len(each.workers)) for each in self._queues)
        self._feed.interval_s = self._interval_s or self._clock.now() - self._recorded_at
        for visit in lost:  # last, as this may end the run
            self._execute(self._pipeline.lost(visit.id))
        self._close_former()

    def _goes_on(self, queue: StageQueue, answer: StageAnswer) -> bool:
        """Take the answer to a query as input of the stage behind, if it goes on, or as result."""
        query, response, outputs = self._queries[answer.visit.query], answer.response, None
        route, position = queue.route, queue.position
        if answer.error and self._of_samples:
            text = f"stage {queue.engine.name!r} failed at a sample: {answer.error}"
            raise InternalError(text)
        if not answer.error:
            asked, is_held = asked_of_exit(route, position), answer.held is not None
            outputs = self._routes.read_outputs(
                route, position, response, held=is_held, asked=asked
            )
        if outputs is not None:
            size = query.pass_on(route, position + 1, outputs)
            self._feed.observe(size + (0 if answer.held is None else answer.held.size))
            return True
        if self._of_samples:
            parameters = parse_stage_response(queue.engine, response)[0].parameters
            query.correct = parameters[CORRECT].bool_param if CORRECT in parameters else None
            response = b""
        elif not (answer.error or route.is_last(position)):
            response = as_whole(response, queue.engine)
        query.inputs = query.data = b""
        query.result = InputResult(query.index, query.name, response, answer.error)
        return False

    # --- commands ---------------------------------------------------------------------------

    def _execute(self, commands: Iterable[Command]) -> list[range]:
        """Execute commands; return the queries to record."""
        done = []
        for command in commands:
            match command:
                case Ready():
                    self._run_visits(command)
                case Record(first, queries):
                    done.append(range(first, first + queries))
                case Drop(tensors):
                    self._dispatcher.drop(tensors)
                case Fail(query, losses):
                    self.fail(f"the tensors of query {query} were lost {losses} times")
        return done

    def _run_visits(self, ready: Ready) -> None:
        queue, added = self._open[ready.number][ready.position], []
        if queue.added + len(ready.visits) > queue.job.queries:
            self.use(self.route)  # its jobs have room for each query once
            return
        for visit in ready.visits:
            query = self._queries[visit.query]
            if not ready.position:
                query.begin(queue.route, self._decoder)
            added.append((visit, query.data))
        queue.add(added)

    def _open_queues(self) -> None:
        self._open[self._number] = [
            StageQueue(
                self._number,
                self.route,
                position,
                replace(
                    self._job,
                    id=JobId(f"{self._job.id}.{next(self._numbers)}"),
                    client_id=self._job.id,  # so that it is explained under the id of the job
                    engine=stage.name,
                    deadline=self._job.deadline - self._behind_s(position),
                    min_accuracy=0.0 if stage.stage_of else self._job.min_accuracy,
                    queries=self._left,
                    with_tensors=True,
                ),
                self._dispatcher,
                self._on_dispatched,
                self._answered,
                self.end,
            )
            for position, stage in enumerate(self.route.engines)
        ]
        # The last stage first: of equally urgent jobs, a worker runs the one that came first.
        for queue in reversed(self._queues):
            self._dispatcher.submit(queue.job, queue, ready=0)

    def _behind_s(self, position: int) -> float:
        """Return the least time of a query in the stages behind one of them."""
        core, rate = self._dispatcher.core, self._routes.rates.rate
        return self.route.seconds(
            lambda stage: core.least_answer_s(stage.name) or stage.query_s, rate, position + 1
        )

    def _close_former(self) -> None:
        for number, queues in list(self._open.items()):
            if number != self._number and all(queue.is_empty for queue in queues):
                for queue in self._open.pop(number):
                    queue.withdraw()

    def _record_results(
        self, queries: range, queues: Sequence[StageQueue], configuration: Configuration
    ) -> None:
        """Record adjacent queries, as one range with those before while the workers are equal."""
        now, done = self._clock.now(), [self._queries.pop(index) for index in queries]
        new = RecordedExecution(
            worker_id=WorkerId(" ".join(",".join(each.workers) for each in queues if each.workers)),
            configuration=configuration,
            first=queries.start,
            count=len(done),
            seconds=now - self._recorded_at,
            labelled=sum(query.correct is not None for query in done),
            correct=sum(query.correct is True for query in done),
        )
        weight = min(1.0, len(done) / LEAST_QUERIES / len(queues)) if self._interval_s else 1.0
        self._interval_s += weight * (new.seconds / len(done) - self._interval_s)
        self._recorded_at = now
        before = self._range
        if before is None or (before.worker_id, before.stop) != (new.worker_id, new.first):
            self._range_id, self._range = next(self._ids), new
        else:
            self._range = before.followed_by(new)
        recorded = RecordedRange(self._range_id, self._job.queries - self._range.first)
        results = [query.result for query in done if query.result is not None]
        room_bytes = sum(query.room_bytes for query in done)
        self._record_range(recorded, self._range, results, room_bytes)
