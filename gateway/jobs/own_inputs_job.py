"""A job over the inputs of an upload while it runs.

The inputs of an assignment are sent in portions, as its results become durable, so that a worker
and the gateway hold few of them. Results are stored durably before they are counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from gateway.fleet.worker import SendInputs
from gateway.jobs.store import StoreFull
from gateway.jobs.submitted_job import SubmittedJob, execution_so_far
from gateway.records.log import DamagedLog
from gateway.records.results import InputResult
from synergai.protocol.job_inputs import split_input
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.admission.tenant_usage import TenantUsage
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.worker import AssignmentProgress, ConnectedWorker
    from gateway.jobs.executions import RecordedExecution
    from gateway.jobs.store import JobStore
    from gateway.jobs.submitted_job import UnfinishedJobs
    from gateway.jobs.tracker import JobTracker
    from gateway.records.log import RecordLog
    from gateway.records.results import ResultLog
    from gateway.records.store import OpenLog
    from synergai.domain import AssignmentId, Fault, JobState
    from synergai.protocol.request_codec import Buffer
    from synergai.scheduling.events import Assignment

PORTION_BYTES: Final = 2 * 1024 * 1024
"""Inputs sent in one message, unless a single one is larger."""
WORKER_BYTES: Final = 16 * 1024 * 1024
"""Inputs that a worker has, and expected responses to them, beyond `LEAST_QUERIES`."""
LEAST_QUERIES: Final = 4
"""Inputs of each assignment that its worker may always have."""
MOST_QUERIES: Final = 2048
"""Inputs of each assignment that its worker may have at most."""
MOST_CRASHES: Final = 16
"""Crashes of engine hosts without a response in between after which a job fails."""


_log = logging.getLogger(__name__)


class JobData(NamedTuple):
    """The files of a job over an upload.

    Attributes:
        inputs: its inputs.
        results_log: its results, as an open log.
        results: the same, as results.
    """

    inputs: OpenLog
    results_log: OpenLog
    results: ResultLog


@dataclass(eq=False, slots=True)
class _Feed:
    """The inputs of one assignment.

    Attributes:
        worker: the worker that runs it.
        assignment: the assignment.
        progress: its progress, which counts the inputs that the worker has.
        sent: number of inputs sent.
        held: cost of each input whose result is not recorded yet, in order.
        recorded: number of recorded results.
        room: set whenever a result was recorded.
        task: sends the inputs.
    """

    worker: ConnectedWorker
    assignment: Assignment
    progress: AssignmentProgress
    sent: int = 0
    held: deque[int] = field(default_factory=deque)
    recorded: int = 0
    room: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the worker still runs the assignment."""
        return self.assignment.id in self.worker.in_flight and not self.worker.orders.closed

    def has_room(self) -> bool:
        """Return whether another portion may be sent."""
        held = len(self.held)
        return held < LEAST_QUERIES or (
            held < MOST_QUERIES and self.worker.input_bytes < WORKER_BYTES
        )

    def add(self, cost: int) -> None:
        """Count an input that is sent."""
        self.sent += 1
        self.held.append(cost)
        self.progress.input_bytes += cost

    def record(self, done: int) -> None:
        """Release the inputs of recorded results."""
        while self.recorded < done and self.held:
            self.progress.input_bytes -= self.held.popleft()
            self.recorded += 1
        self.room.set()

    def close(self) -> None:
        """Release everything, and send nothing more."""
        self.record(self.sent)
        if self.task is not None:
            self.task.cancel()


class OwnInputsJob(SubmittedJob):
    """An unfinished job over an upload.

    Attributes:
        data: its files.
    """

    with_tensors = True
    inputs_follow = True

    def __init__(
        self,
        jobs: UnfinishedJobs,
        journal: JobStore,
        tracker: JobTracker,
        usage: TenantUsage | None,
        dispatcher: Dispatcher,
        data: JobData,
        on_results: Callable[[OwnInputsJob, int, int], None],
    ) -> None:
        super().__init__(jobs, journal, tracker, usage)
        self.data = data
        self._dispatcher = dispatcher
        self._on_results = on_results
        self._feeds: dict[AssignmentId, _Feed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._names: dict[int, str] = {}
        self._suspects: set[int] = set()
        self._crashes = 0
        self._response_bytes = 0

    def on_dispatched(self, worker: ConnectedWorker, assignment: Assignment, now: float) -> None:
        """Record the dispatch, and begin to send the inputs."""
        super().on_dispatched(worker, assignment, now)
        self._drop_feeds(lambda feed: not feed.is_wanted)
        feed = self._feeds[assignment.id] = _Feed(
            worker, assignment, worker.in_flight[assignment.id]
        )
        feed.task = asyncio.create_task(self._send(feed))
        self._tasks.add(feed.task)
        feed.task.add_done_callback(self._tasks.discard)

    def on_progress(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        responses: Sequence[Buffer],
        now: float,
    ) -> None:
        """Store the results, then record the queries in the journal, then in the status."""
        assignment = progress.assignment
        before = progress.done - len(responses)
        results = []
        for query, response in enumerate(responses, before):
            index = assignment.first + query
            error = progress.failed.get(query, "")
            results.append(InputResult(index, self._names.get(index, ""), response, error))
            if not error:
                self._crashes = 0
                self._response_bytes = max(
                    len(response), self._response_bytes - self._response_bytes // 16
                )
        self._journal.record_results(
            self.tracker.id,
            assignment.id,
            execution_so_far(worker, progress, now),
            self.data.results,
            results,
        ).add_done_callback(partial(self._stored, assignment, [each.index for each in results]))

    def excuses_crash(self, query: int) -> bool:
        """Run the query alone next, and return True, unless that was tried before."""
        self._crashes += 1
        if self._crashes > MOST_CRASHES:
            reason = f"engine hosts died {self._crashes} times in a row at its inputs"
            self._dispatcher.fail(self.tracker.id, reason)
        if query in self._suspects:
            return False
        self._suspects.add(query)
        return True

    def on_ended(self, state: JobState, reason: str, fault: Fault, now: float) -> None:
        """Send nothing more, and record the end."""
        self._drop_feeds(lambda _: True)
        super().on_ended(state, reason, fault, now)

    def resume(self) -> None:
        """Continue after a pause."""
        self._drop_feeds(lambda _: True)
        super().resume()

    async def close(self) -> None:
        """Wait until nothing reads the inputs any more."""
        self._drop_feeds(lambda _: True)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _stored(
        self,
        assignment: Assignment,
        indexes: Sequence[int],
        recorded: asyncio.Future[RecordedExecution],
    ) -> None:
        if (error := recorded.exception()) is not None:
            if isinstance(error, StoreFull):
                # Before the core ends the job: these queries run again after the pause.
                self._jobs.pauses.pause(self.tracker.id)
            else:
                _log.error("job %s: results not recorded: %s", self.tracker.id, error)
            return
        execution = recorded.result()
        failures = self.tracker.failures
        self.tracker.record_execution(assignment, execution)
        for index in indexes:
            self._names.pop(index, None)
            self._suspects.discard(index)
        feed = self._feeds.get(assignment.id)
        if feed is not None:
            feed.record(execution.count)
            if execution.count == assignment.count:
                self._feeds.pop(assignment.id).close()
        failed = self.tracker.failures - failures
        self._on_results(self, len(indexes) - failed, failed)
        limit = self.tracker.spec.max_failures
        if limit is not None and self.tracker.failures > limit:
            self._dispatcher.fail(
                self.tracker.id,
                f"{counted(self.tracker.failures, 'input')} failed, and {limit:,} may",
            )

    async def _send(self, feed: _Feed) -> None:
        """Send the inputs of an assignment while there is room for them."""
        assignment = feed.assignment
        log = self.data.inputs.log
        try:
            while feed.sent < assignment.count:
                while not feed.has_room():
                    feed.room.clear()
                    await feed.room.wait()
                left = min(assignment.count - feed.sent, MOST_QUERIES - len(feed.held))
                if self._response_bytes:
                    free = max(0, WORKER_BYTES - feed.worker.input_bytes)
                    left = max(1, min(left, free // self._response_bytes))
                first = assignment.first + feed.sent
                inputs = await asyncio.to_thread(_read, log, first, left)
                if not feed.is_wanted:
                    return
                suspects = [
                    index - assignment.first
                    for index in range(first, first + len(inputs))
                    if index in self._suspects
                ]
                for index, data in enumerate(inputs, first):
                    self._names[index] = _name(data)
                    feed.add(max(len(data), self._response_bytes))
                feed.worker.orders.put(SendInputs(assignment.id, inputs, suspects))
        except (DamagedLog, OSError) as error:
            _log.error("job %s: its inputs cannot be read: %s", self.tracker.id, error)
            self._dispatcher.fail(self.tracker.id, "its inputs cannot be read any more")

    def _drop_feeds(self, which: Callable[[_Feed], bool]) -> None:
        for assignment_id, feed in list(self._feeds.items()):
            if which(feed):
                del self._feeds[assignment_id]
                feed.close()


def _read(log: RecordLog, first: int, count: int) -> list[bytes]:
    """Return the next inputs, at least one.

    Raises:
        DamagedLog, OSError: they are missing, or cannot be read.
    """
    inputs = log.read(first, count, PORTION_BYTES)
    if not inputs:
        raise DamagedLog(f"{log.directory} lacks input {first}")
    return inputs


def _name(data: bytes) -> str:
    """Return the name of a serialised input; empty if it is damaged, which its worker reports."""
    try:
        return split_input(data).name
    except DecodeError:
        return ""
