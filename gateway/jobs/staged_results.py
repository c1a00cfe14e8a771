"""Results of a job in stages, which are recorded in the order in which its queries began."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from gateway.jobs.staged_feed import LEAST_QUERIES
from gateway.journal.job_record import RecordedExecution
from gateway.records.results import InputResult
from synergai.domain import AssignmentId, WorkerId
from synergai.protocol.stages import parse_stage_response
from synergai.protocol.validation import CORRECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.jobs.stage import Line
    from gateway.jobs.staged_query import StagedQuery
    from synergai.domain import Configuration, Engine
    from synergai.protocol.request_codec import Buffer
    from synergai.runtime.clock import Clock

    Record: TypeAlias = Callable[
        ["RecordedRange", RecordedExecution, Sequence[InputResult], int], None
    ]
    """Records a range with the results that are new, which hold so many bytes."""


class RecordedRange(Struct, frozen=True):
    """Queries that are recorded under one id."""

    id: AssignmentId
    count: int


class StagedResults:
    """The queries of a run on their way, and the range that is recorded.

    Args:
        count: queries of the job.
        new_id: returns the id of a range.
        of_samples: whether they are samples, of whose results nothing is kept but their number.
    """

    def __init__(
        self,
        count: int,
        record: Record,
        new_id: Callable[[], AssignmentId],
        clock: Clock,
        *,
        of_samples: bool,
    ) -> None:
        self._count = count
        self._record_results = record
        self._new_id = new_id
        self._clock = clock
        self._of_samples = of_samples
        self._interval_s = 0.0
        self._queries: deque[StagedQuery] = deque()
        self._recorded_at = clock.now()
        self._range_id = AssignmentId(0)
        self._range: RecordedExecution | None = None

    def __iter__(self) -> Iterator[StagedQuery]:
        return iter(self._queries)

    @property
    def interval_s(self) -> float:
        """Time between results; until there are any, that since the run began."""
        return self._interval_s or self._clock.now() - self._recorded_at

    def add(self, queries: Sequence[StagedQuery]) -> None:
        """Add queries that begin."""
        self._queries.extend(queries)

    def finish(self, query: StagedQuery, engine: Engine, response: Buffer, error: str) -> None:
        """Keep the result of a query, which the last engine of its way has answered."""
        query.data = b""
        if self._of_samples:
            parameters = parse_stage_response(engine, response)[0].parameters
            query.correct = parameters[CORRECT].bool_param if CORRECT in parameters else None
            response = b""
        query.result = InputResult(query.index, query.name, response, error)

    def record(self, line: Line, configuration: Configuration) -> None:
        """Record the results of the queries that began first, the last of them in a line."""
        done: list[StagedQuery] = []
        while self._queries and self._queries[0].result is not None:
            query = self._queries.popleft()
            if done and query.index != done[-1].index + 1:
                self._record_range(done, line, configuration)
                done = []
            done.append(query)
        if done:
            self._record_range(done, line, configuration)

    def _record_range(
        self, done: Sequence[StagedQuery], line: Line, configuration: Configuration
    ) -> None:
        """Record adjacent queries, as one range with those before as long as the route is equal."""
        now = self._clock.now()
        new = RecordedExecution(
            worker_id=WorkerId(line.route),
            configuration=configuration,
            first=done[0].index,
            count=len(done),
            seconds=now - self._recorded_at,
            labelled=sum(query.correct is not None for query in done),
            correct=sum(query.correct is True for query in done),
        )
        weight = min(1.0, len(done) / LEAST_QUERIES / len(line.stages)) if self._interval_s else 1.0
        self._interval_s += weight * ((now - self._recorded_at) / len(done) - self._interval_s)
        self._recorded_at = now
        before = self._range
        if before is None or (before.worker_id, before.stop) != (new.worker_id, new.first):
            self._range_id, self._range = self._new_id(), new
        else:
            self._range = before.followed_by(new)
        queries = RecordedRange(self._range_id, self._count - self._range.first)
        results = [query.result for query in done if query.result is not None]
        room_bytes = sum(query.room_bytes for query in done)
        self._record_results(queries, self._range, results, room_bytes)
