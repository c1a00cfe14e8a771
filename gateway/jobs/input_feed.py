"""The inputs of a job over an upload while it runs.

The inputs of an assignment are sent in portions, as its results become durable, so that a worker
holds few of them. What is read and not yet written to a worker has a limit for all of them. Results
are stored durably before they are counted.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from gateway.fleet.worker import AssignmentProgress, ConnectedWorker, SendInputs
from gateway.journal.data_store import InputResult, OpenLog, ResultLog
from gateway.journal.record_log import DamagedLog, RecordLog
from synergai.runtime.tasks import TaskBag
from synergai.wire.job_inputs import split_input, without_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.journal.job_record import RecordedExecution
    from synergai.core.scheduling.events import Assignment
    from synergai.domain import AssignmentId, Job
    from synergai.wire.request_codec import Buffer

    Urgency = tuple[int, float, float]

PORTION_BYTES: Final = 2 * 1024 * 1024
"""Inputs sent in one message, unless a single one is larger."""
WORKER_BYTES: Final = 16 * 1024 * 1024
"""Inputs that a worker has at most, and expected responses to them, beyond `LEAST_QUERIES`."""
AHEAD_S: Final = 0.5
"""Inputs that a worker has over a slow link, as time on it. An order to stop waits behind them."""
UNKNOWN_BYTES: Final = 256 * 1024
"""Inputs that a worker has before anything is known of its link."""
LEAST_QUERIES: Final = 2
"""Inputs of each assignment that its worker may always have: one arrives during a query."""
MOST_QUERIES: Final = 2048
"""Inputs of each assignment that its worker may have at most."""
UNSENT_BYTES: Final = 512 * 1024 * 1024
"""Inputs of all jobs in memory on their way to workers, unless a single one is larger."""
MOST_CRASHES: Final = 16
"""Crashes of engine hosts without a response in between after which a job fails."""

_log = logging.getLogger(__name__)


class Suspects:
    """The queries that run alone next, since an engine host died at or near them.

    `fail` is called after too many crashes.
    """

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._queries: set[int] = set()
        self._crashes = 0

    def __contains__(self, query: int) -> bool:
        return query in self._queries

    def retries_alone(self, query: int) -> bool:
        """Return whether a query at which an engine host died runs alone next; only once."""
        self._crashes += 1
        if self._crashes > MOST_CRASHES:
            self._fail(f"engine hosts died {self._crashes} times in a row at its inputs")
        if query in self._queries:
            return False
        self._queries.add(query)
        return True

    def answered(self) -> None:
        self._crashes = 0

    def forget(self, query: int) -> None:
        self._queries.discard(query)


class TensorRoom:
    """Memory for tensors of jobs, which the most urgent job gets first.

    It has room for `limit_bytes`, unless a single query needs more.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self._numbers = count()
        self._waiting: list[tuple[Urgency, int, int, asyncio.Future[None]]] = []

    async def take(self, job: Job, size: int) -> None:
        """Wait until there is room for a query of a job, and take it."""
        if self.try_take(size):
            return
        granted = asyncio.get_running_loop().create_future()
        urgency = -job.priority, job.deadline, job.arrival
        heapq.heappush(self._waiting, (urgency, next(self._numbers), size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            self.give(0 if granted.cancelled() else size)  # also to those that waited behind it
            raise

    def try_take(self, size: int) -> bool:
        """Take room if there is some, and no other job waits for it; return whether there was."""
        if self._waiting or not self._fits(size):
            return False
        self.used_bytes += size
        return True

    def give(self, size: int) -> None:
        self.used_bytes -= size
        while self._waiting:
            _, _, wanted, granted = self._waiting[0]
            if not granted.cancelled():
                if not self._fits(wanted):
                    return
                self.used_bytes += wanted
                granted.set_result(None)
            heapq.heappop(self._waiting)

    def _fits(self, size: int) -> bool:
        return not self.used_bytes or self.used_bytes + size <= self._limit_bytes


class JobData(NamedTuple):
    """The files of a job over an upload."""

    inputs: OpenLog
    results_log: OpenLog
    results: ResultLog


@dataclass(eq=False, slots=True)
class _AssignedInputs:
    """The inputs of one assignment.

    Attributes:
        held: cost of each input whose result is not recorded yet, in order.
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
        held = len(self.held)
        return held < LEAST_QUERIES or (held < MOST_QUERIES and self.free_bytes() > 0)

    def free_bytes(self) -> int:
        """Return how many bytes more its worker may have."""
        most = WORKER_BYTES
        if not self.worker.local:
            link = self.worker.measure_link()
            on_link = UNKNOWN_BYTES if link is None else int(AHEAD_S * link.bytes_per_s)
            most = min(on_link, WORKER_BYTES)
        return most - self.worker.input_bytes

    def add(self, cost: int) -> None:
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


class InputFeed:
    """Sends the inputs of a job to the workers that run its assignments."""

    def __init__(
        self,
        job: Job,
        data: JobData,
        room: TensorRoom,
        fail: Callable[[str], None],
        on_results: Callable[[JobData], None],
    ) -> None:
        self.data = data
        self._job = job
        self._room = room
        self._fail = fail
        self._on_results = on_results
        self._assigned: dict[AssignmentId, _AssignedInputs] = {}
        self._tasks = TaskBag()
        self._names: dict[int, str] = {}
        self.suspects = Suspects(fail)
        self._response_bytes = 0

    def start(self, worker: ConnectedWorker, assignment: Assignment) -> None:
        self._drop(lambda inputs: not inputs.is_wanted)
        inputs = self._assigned[assignment.id] = _AssignedInputs(
            worker, assignment, worker.in_flight[assignment.id]
        )
        inputs.task = self._tasks.start(self._send(inputs))

    def stop(self) -> None:
        self._drop(lambda _: True)

    async def close(self) -> None:
        """Stop, and wait until nothing reads the inputs."""
        self.stop()
        await self._tasks.wait()

    def results(
        self, progress: AssignmentProgress, responses: Sequence[Buffer]
    ) -> list[InputResult]:
        results = []
        for query, response in enumerate(responses, progress.done - len(responses)):
            index = progress.assignment.first + query
            error = progress.failed.get(query, "")
            results.append(InputResult(index, self._names.get(index, ""), response, error))
            if not error:
                self.suspects.answered()
                self._response_bytes = max(
                    len(response), self._response_bytes - self._response_bytes // 16
                )
        return results

    def on_recorded(
        self, execution: RecordedExecution, assignment: Assignment, indexes: range
    ) -> None:
        for index in indexes:
            self._names.pop(index, None)
            self.suspects.forget(index)
        inputs = self._assigned.get(assignment.id)
        if inputs is not None:
            inputs.record(execution.count)
            if execution.count == assignment.count:
                self._assigned.pop(assignment.id).close()
        self.measure_results()

    def measure_results(self) -> None:
        self._on_results(self.data)

    async def _send(self, inputs: _AssignedInputs) -> None:
        assignment = inputs.assignment
        log = self.data.inputs.log
        try:
            while inputs.sent < assignment.count:
                while not inputs.has_room():
                    inputs.room.clear()
                    await inputs.room.wait()
                left = min(assignment.count - inputs.sent, MOST_QUERIES - len(inputs.held))
                free = inputs.free_bytes()
                if self._response_bytes:
                    left = max(1, min(left, free // self._response_bytes))
                size = max(log.size(assignment.first + inputs.sent), min(free, PORTION_BYTES))
                await self._room.take(self._job, size)
                if not await self._send_portion(inputs, left, free, partial(self._room.give, size)):
                    return
        except (DamagedLog, OSError) as error:
            _log.error("job %s: its inputs cannot be read: %s", self._job.id, error)
            self._fail("its inputs can no longer be read")

    async def _send_portion(
        self,
        inputs: _AssignedInputs,
        count: int,
        limit_bytes: int,
        on_written: Callable[[], None],
    ) -> bool:
        """Read and send the next inputs of an assignment; return whether its worker wants them."""
        assignment, wanted = inputs.assignment, False
        first = assignment.first + inputs.sent
        try:
            found = await asyncio.to_thread(
                read_inputs, self.data.inputs.log, first, count, limit_bytes
            )
            wanted = inputs.is_wanted and not inputs.progress.stopping
        finally:
            if not wanted:
                on_written()
        if wanted:
            suspects = [
                index - assignment.first
                for index in range(first, first + len(found))
                if index in self.suspects
            ]
            for index, data in enumerate(found, first):
                self._names[index] = _name(data)
                inputs.add(max(len(data), self._response_bytes))
            inputs.worker.orders.put(SendInputs(assignment.id, found, suspects), on_written)
        return wanted

    def _drop(self, which: Callable[[_AssignedInputs], bool]) -> None:
        for assignment_id, inputs in list(self._assigned.items()):
            if which(inputs):
                del self._assigned[assignment_id]
                inputs.close()


def read_inputs(
    log: RecordLog, first: int, count: int, limit_bytes: int = PORTION_BYTES
) -> list[bytes]:
    """Read at least one and at most `count` inputs, unless one is missing."""
    inputs = log.read(first, count, min(limit_bytes, PORTION_BYTES))
    if not inputs:
        raise DamagedLog(f"{log.directory} lacks input {first}")
    return [without_sample(data) for data in inputs]


def _name(data: bytes) -> str:
    """Return the name of a serialised input; empty if it is damaged, which its worker reports."""
    try:
        return split_input(data).name
    except DecodeError:
        return ""
