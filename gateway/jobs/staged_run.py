"""One run of a job through the stages of its engine.

Each stage is a job of its own in the scheduling core. A query is ready in a stage once the stage
before has answered it, so that no worker waits for another one. Tensors between stages are in
memory only: queries that are not recorded run again after a restart. Workers with a peer port hold
their outputs, which the worker of the next stage pulls from them. A query that leaves its engine at
an early exit is recorded in its turn, like one behind all stages.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.fleet.stages import tensor_bytes
from gateway.jobs.stage import Line
from gateway.jobs.staged_feed import StagedFeed
from gateway.jobs.staged_query import StagedQuery
from gateway.jobs.staged_results import StagedResults
from synergai.domain import Fault, JobId, JobState
from synergai.errors import InternalError
from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.protocol.request_codec import RequestDecoder
from synergai.protocol.stages import has_left, parse_stage_response
from synergai.scheduling.state.jobs import Ranges
from synergai.versions import split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.fleet.ways import Way
    from gateway.jobs.stage import Stage
    from gateway.jobs.staged_results import Record
    from gateway.jobs.staged_runs import StagedRuns
    from gateway.records.log import RecordLog
    from synergai.domain import Configuration, Engine, Job
    from synergai.protocol.request_codec import Buffer
    from synergai.scheduling.events import Assignment

MOST_REPEATS: Final = 10
"""Times that a query begins again after the worker that held its tensors was lost."""


class StagedRun:
    """One run of a job through stages, from its start until it ends, is paused or changes chains.

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
        runs: StagedRuns,
        way: Way,
        job: Job,
        done: Sequence[tuple[int, int]],
        log: RecordLog | None,
        numbers: Iterator[int],
        *,
        record: Record,
        on_dispatched: Callable[[Assignment, float], None],
        on_ended: Callable[[JobState, str, Fault, float], None],
    ) -> None:
        self.way = way
        self._on_dispatched = on_dispatched
        self._dispatcher = runs.dispatcher
        self._on_ended = on_ended
        self._clock = runs.clock
        self._rates = runs.ways.rates
        self._job = job
        self._of_samples = log is None
        self._numbers = numbers
        pending = Ranges.complement(done, job.queries)
        self._left = pending.total
        self._line = self._new_line()
        self._former: list[Line] = []
        self._feed = StagedFeed(
            job,
            pending,
            log,
            runs.room,
            max(tensor_bytes(stage.outputs) for stage in way.engines),
            self._begin_read,
            self.fail,
        )
        self._results = StagedResults(
            job.queries, record, runs.new_id, runs.clock, of_samples=self._of_samples
        )
        self._decoder = RequestDecoder()
        name, version = split_version(way.whole.name)
        # Fields that are appended to a message replace those before them.
        self._name = ModelInferResponse(model_name=name, model_version=version).SerializeToString()
        self._closed = False

    def start(self) -> None:
        """Begin."""
        if not self._left:
            self.end(JobState.SUCCEEDED, "", Fault.UNSPECIFIED)
            return
        self._line.submit()
        self._feed.start()

    def use(self, way: Way) -> None:
        """Let queries that no stage has answered take another way; the others stay on theirs."""
        self.way = way
        former = self._line
        self._former.append(former)
        self._line = self._new_line()
        self._line.submit()
        waiting = former.stages[0].withdraw()
        if way == former.way or not (way.has_exits or former.way.has_exits):
            self._begin(waiting)
        else:  # their inputs say what is asked of an exit
            for query in waiting:
                self._read_again(query)
        self._end_former()

    @property
    def engines(self) -> Iterator[Engine]:
        """Stages that queries run in, those of former chains included."""
        return (engine for line in (self._line, *self._former) for engine in line.way.engines)

    def close(self) -> None:
        """Withdraw all queries that are not recorded."""
        self._closed = True
        for line in (self._line, *self._former):
            line.withdraw()
        self._feed.close()
        for query in self._results:
            query.drop_tensors(self._dispatcher)

    def fail(self, reason: str) -> None:
        """Fail the job."""
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
        for position, stage in enumerate(self._line.stages):
            if not stage.ended:
                at = self._dispatcher.expected_completion(stage.job.id, now)
                if at is None:
                    return None
                last = max(last, now + share * (at - now))
            if self.way.may_leave(position):
                share *= 1 - self._rates.rate(stage.engine)
        return last

    # --- queries on their way -------------------------------------------------------------------

    def _answered(
        self,
        stage: Stage,
        answers: Sequence[tuple[StagedQuery, Buffer, str]],
        configuration: Configuration,
    ) -> None:
        """Pass queries on to the stage behind, with outputs as inputs, or record their results."""
        behind = stage.line.stages[stage.position + 1 :]
        passed, left = [], False
        for query, response, error in answers:
            if error and self._of_samples:
                self.fail(f"stage {stage.engine.name!r} failed at a sample: {error}")
                return
            try:
                if error or not behind:
                    self._results.finish(query, stage.engine, response, error)
                elif self._pass_on(stage, query, response):
                    passed.append(query)
                else:
                    left = True
            except InternalError as malformed:
                self.fail(str(malformed))
                return
        if passed:
            behind[0].add(passed)
        if left or len(behind) <= 1:
            self._feed.set_sized()
        self._results.record(stage.line, configuration)
        self._feed.set_pace(self._results.interval_s, self._line.workers)
        self._end_former()

    def _repeat(self, query: StagedQuery) -> None:
        """Let a query begin again, as the worker with its tensors was lost."""
        query.repeats += 1
        if query.repeats > MOST_REPEATS:
            self.fail(f"the tensors of query {query.index} were lost {query.repeats} times")
        elif not self._closed:
            self._read_again(query)

    def _read_again(self, query: StagedQuery) -> None:
        self._feed.read_again(query.index, partial(self._begin_with, [query]))

    def _begin_read(self, first: int, inputs: Sequence[bytes], room_bytes: int) -> None:
        """Let queries begin that have been read."""
        queries = [StagedQuery(index, room_bytes) for index, _ in enumerate(inputs, first)]
        self._results.add(queries)
        self._begin_with(queries, inputs)

    def _begin_with(self, queries: Sequence[StagedQuery], inputs: Sequence[bytes]) -> None:
        for query, data in zip(queries, inputs, strict=True):
            query.begin(self.way, data, self._decoder)
        self._begin(queries)

    def _begin(self, queries: Sequence[StagedQuery]) -> None:
        """Let queries run in the first stage, some of them perhaps once more."""
        stage = self._line.stages[0]
        if stage.added + len(queries) > stage.job.queries:
            self.use(self.way)  # its jobs have room for each query once
        self._line.stages[0].add(queries)

    def _pass_on(self, stage: Stage, query: StagedQuery, response: Buffer) -> bool:
        """Prepare a query for the stage behind; return whether it has not left the engine."""
        held = query.pull is not None
        message, contents = parse_stage_response(stage.engine, response, held=held)
        way, position = stage.line.way, stage.position
        left = has_left(message)
        if way.may_leave(position):
            self._rates.observe(stage.engine, left=left)
        if left:
            response = b"".join((response, self._name))
            self._results.finish(query, stage.engine, response, "")
            return False
        query.pass_on(way, position + 1, message, contents)
        if way.begins_again(position + 1):
            query.drop_tensors(self._dispatcher)
        self._feed.observe(query.tensor_bytes)
        return True

    # --- lines of stages ------------------------------------------------------------------------

    def _new_line(self) -> Line:
        jobs = [self._job_of(engine, next(self._numbers)) for engine in self.way.engines]
        calls = self._on_dispatched, self._answered, self._repeat, self.end
        return Line(self.way, jobs, self._dispatcher, *calls)

    def _end_former(self) -> None:
        """Withdraw former lines that no query is left in."""
        for line in [line for line in self._former if line.is_empty]:
            self._former.remove(line)
            line.withdraw()

    def _job_of(self, stage: Engine, number: int) -> Job:
        return replace(
            self._job,
            id=JobId(f"{self._job.id}.{number}"),
            client_id=self._job.id,  # so that it is explained under the id of the job
            engine=stage.name,
            min_accuracy=0.0 if stage.stage_of else self._job.min_accuracy,
            queries=self._left,
            with_tensors=True,
        )
