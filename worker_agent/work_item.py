"""Work items: queries of one assignment that run, and their inputs, which may arrive meanwhile."""

from __future__ import annotations

import asyncio
import enum
import math
from collections import deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from synergai.domain import BatchTimes, Fault, Outcome, Session
from synergai.runtime.tasks import TaskBag
from synergai.v1 import hub_pb2
from synergai.wire.job_inputs import split_input, without_version
from synergai.wire.work_messages import Reports
from worker_agent.ipc import RunEnded, Tally

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence

    from synergai.v1.hub_pb2 import Pull
    from synergai.wire.request_codec import Buffer
    from worker_agent.exchange import Holding
    from worker_agent.hosts.process import HostProcess

_PULLED_AHEAD: Final = 8
"""Inputs whose tensors are being pulled, or were pulled and are not fed yet."""
REPORT_INTERVAL_S: Final = 0.05
"""Minimum interval between two progress reports on a work item with single requests."""
_STARVED_REPORT_INTERVAL_S: Final = 0.01
"""The same, while there is no further input to feed."""
REPORT_BYTES: Final = 4 << 20
"""Total size of responses that are reported before the interval is over."""

_COMPLETED: Final = Outcome.COMPLETED  # for the path of every item
_EMPTY: Final = Tally()
_MAX_DETAIL: Final = 1000


class Failure(NamedTuple):
    """Reason why a work item, or one of its inputs, failed."""

    fault: Fault
    detail: str


Content: TypeAlias = "Buffer | Failure"


class NextInput(NamedTuple):
    """A serialised ``ModelInferRequest``, or why there is none; `alone` if none may run with it."""

    content: Content
    alone: bool


class InputQueue:
    """The inputs of a work item that have arrived and have not been fed to a host, in order.

    `pull` completes a request with tensors that a worker holds. `on_ready` is called whenever
    `next` may have changed from None.
    """

    def __init__(
        self,
        pull: Callable[[Pull, Buffer], Awaitable[Content]],
        on_ready: Callable[[], None],
        count: int,
    ) -> None:
        self._pull = pull
        self._on_ready = on_ready
        self._count = count
        self._received = 0
        self._inputs: deque[tuple[Content | Future[Content], bool]] = deque()
        self._to_pull: deque[Coroutine[None, None, None]] = deque()
        self._ahead = 0
        self._pulling = TaskBag()
        self._closed = False

    def receive(
        self,
        inputs: Sequence[Buffer],
        suspects: Collection[int],
        pulls: Mapping[int, Pull] = MappingProxyType({}),
    ) -> None:
        """Add the next serialised inputs. Suspects run alone; some have tensors to be pulled."""
        for data in inputs[: self._count - self._received]:
            alone, pull = self._received in suspects, pulls.get(self._received)
            self._received += 1
            try:
                found = split_input(data)
            except DecodeError as error:
                detail = f"the input is not a valid synergai.v1.Input: {error}"
                self.add(Failure(Fault.BAD_INPUT, detail), alone=alone)
                continue
            request = without_version(found.request)
            if pull is None:
                self.add(request, alone=alone)
                continue
            content: Future[Content] = asyncio.get_running_loop().create_future()
            self._to_pull.append(self._complete(pull, request, content))
            self.add(content, alone=alone)
        self._pull_ahead()

    def add(self, content: Content | Future[Content], *, alone: bool = False) -> None:
        """Add the next input, or a future of it that is not cancelled before it is taken."""
        self._inputs.append((content, alone))
        if isinstance(content, asyncio.Future):
            content.add_done_callback(lambda _: self._on_ready())
        else:
            self._on_ready()

    @property
    def next(self) -> NextInput | None:
        """The next input; None if it has not arrived yet."""
        if not self._inputs:
            return None
        content, alone = self._inputs[0]
        if not isinstance(content, asyncio.Future):
            return NextInput(content, alone)
        return NextInput(content.result(), alone) if content.done() else None

    def remove_next(self) -> None:
        """Remove the next input, which has been fed."""
        content, _ = self._inputs.popleft()
        if isinstance(content, asyncio.Future):
            self._ahead -= 1
            self._pull_ahead()

    def close(self) -> None:
        """Pull nothing more."""
        self._closed = True
        while self._to_pull:
            self._to_pull.popleft().close()
        self._pulling.cancel()

    def _pull_ahead(self) -> None:
        while self._to_pull and self._ahead < _PULLED_AHEAD and not self._closed:
            self._ahead += 1
            self._pulling.start(self._to_pull.popleft())

    async def _complete(self, pull: Pull, request: Buffer, content: Future[Content]) -> None:
        content.set_result(await self._pull(pull, request))


class WorkState(enum.IntEnum):
    """Lifecycle of a work item in the runner; see `TRANSITIONS`."""

    QUEUED = enum.auto()
    """None of its queries has been fed to a host."""
    FEEDING = enum.auto()
    """Some of its queries have been fed to a host, others have not."""
    DRAINING = enum.auto()
    """No more queries are fed; runs are in flight."""
    ENDED = enum.auto()
    """The outcome has been reported."""


# Aliases for the runner's hot path: accessing an enum member by name is a call in Python 3.11.
QUEUED: Final = WorkState.QUEUED
FEEDING: Final = WorkState.FEEDING
DRAINING: Final = WorkState.DRAINING
ENDED: Final = WorkState.ENDED

TRANSITIONS: Final[Mapping[WorkState, frozenset[WorkState]]] = {
    QUEUED: frozenset((FEEDING, DRAINING)),
    FEEDING: frozenset((DRAINING,)),
    DRAINING: frozenset((ENDED,)),
    ENDED: frozenset(),
}


@dataclass(kw_only=True, eq=False)
class WorkItem:
    """Queries on one engine: single requests, a range of its sample set, or inputs that follow.

    The first group of attributes describes the work; the second is maintained by the runner.

    Attributes:
        due: instant on the monotonic clock by which a shared batch must be computed.
        concurrent: it is a single request that waits for no item of another session; see
            ``runner``.
        inputs: inputs that arrive while the item runs; None for requests and ranges. One that fails
            does not fail the item.

        failed_inputs: failed inputs behind queries that have not ended yet, by query.
    """

    session: Session
    handler: AssignmentReporter
    requests: Sequence[Buffer] = ()
    first: int = 0
    count: int = 1
    job: str = ""
    batch_times: BatchTimes | None = None
    due: float = math.inf
    inputs: InputQueue | None = None
    concurrent: bool = False

    state: WorkState = field(default=QUEUED, init=False)
    host: HostProcess | None = field(default=None, init=False)
    fed: int = field(default=0, init=False)
    in_flight: int = field(default=0, init=False)
    failed_inputs: deque[tuple[int, Failure]] = field(default_factory=deque, init=False)
    failure: Failure | None = field(default=None, init=False)
    reporter: ItemReporter = field(init=False)

    def enter(self, state: WorkState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"work item: {self.state.name} before {state.name}")
        self.state = state


class AssignmentReporter:
    """Sends the reports of one assignment, always in this order.

    ``on_started`` at most once, ``on_progress`` any number of times, ``on_ended`` exactly once.
    """

    def __init__(
        self,
        assignment_id: int,
        send: Callable[[Reports], None],
        on_ended: Callable[[int], None],
        hold: Callable[[bytes], Holding | None] | None = None,
    ) -> None:
        self._id = assignment_id
        self._send = send
        self._on_ended = on_ended
        self._hold = hold
        self._failures: list[hub_pb2.InputFailure] = []

    def on_input_failed(self, query: int, failure: Failure) -> None:
        """Note a failure for the next report."""
        detail, lost = failure.detail[:_MAX_DETAIL], failure.fault is Fault.TENSORS_LOST
        self._failures.append(hub_pb2.InputFailure(query=query, detail=detail, lost=lost))

    def on_started(self, setup_s: float) -> None:
        started = hub_pb2.Started(assignment_id=self._id, setup_s=setup_s)
        self._send(Reports(started=(started,)))

    def on_progress(self, tally: Tally, responses: Sequence[bytes]) -> None:
        progress = hub_pb2.Progress()
        self._fill(progress, tally)
        if self._hold is not None:
            responses = self._keep(self._hold, progress, responses)
        self._send(Reports(progress=((progress, responses),)))

    def on_ended(
        self,
        outcome: Outcome,
        tally: Tally,
        responses: Sequence[bytes],
        fault: Fault = Fault.UNSPECIFIED,
        detail: str = "",
    ) -> None:
        # Field by field, which takes a third of the time.
        ended = hub_pb2.Ended()
        ended.outcome = hub_pb2.Outcome.ValueType(outcome)
        if fault:
            ended.fault = hub_pb2.Fault.ValueType(fault)
        if detail:
            ended.detail = detail
        self._fill(ended.progress, tally)
        if self._hold is not None:
            responses = self._keep(self._hold, ended.progress, responses)
        self._send(Reports(ended=((ended, responses),)))
        self._on_ended(self._id)

    @staticmethod
    def _keep(
        hold: Callable[[bytes], Holding | None],
        progress: hub_pb2.Progress,
        responses: Sequence[bytes],
    ) -> Sequence[bytes]:
        """Return the responses to send, without the contents that are held."""
        kept = []
        for query, response in enumerate(responses, progress.done - len(responses)):
            holding = hold(response)
            if holding is None:
                kept.append(response)
            else:
                kept.append(holding.response)
                progress.held.add(query=query, token=holding.token, size=holding.size)
        return kept

    def _fill(self, progress: hub_pb2.Progress, tally: Tally) -> None:
        progress.assignment_id = self._id
        progress.done = tally.done
        progress.labelled = tally.labelled
        progress.correct = tally.correct
        progress.compute_s = tally.compute_s
        progress.batch = tally.batch
        if self._failures:
            failures = [each for each in self._failures if each.query < tally.done]
            del self._failures[: len(failures)]
            progress.failures.extend(failures)


class ItemReporter:
    """Accumulates the results of one work item and reports them to its handler.

    Only a prefix of the queries counts: after the first query that did not complete, later
    responses are discarded.
    """

    tally = _EMPTY
    setup_s = _reported_at = 0.0
    _bytes = 0
    _is_complete_prefix = True
    _is_started = False

    def __init__(
        self, handler: AssignmentReporter, count: int, clock: Callable[[], float], max_bytes: float
    ) -> None:
        self._handler: AssignmentReporter | None = handler
        self._count = count
        self._clock = clock
        self._max_bytes = max_bytes
        self._responses: list[bytes] = []

    def mute(self) -> None:
        self._handler = None

    def start(self) -> None:
        """Report the end of the setup, except for a single query without setup. Idempotent."""
        if self._is_started:
            return
        self._is_started = True
        self._reported_at = self._clock()
        if self._handler is not None and (self._count > 1 or self.setup_s > 0):
            self._handler.on_started(self.setup_s)

    def add_response(self, ended: RunEnded) -> None:
        """Count a completed query; report progress if it is due."""
        self._add(bytes(ended.response), ended.tally.compute_s, ended.tally.batch)

    def add_failure(self, failure: Failure, compute_s: float = 0.0) -> None:
        """Count a query whose input failed as completed; report progress if it is due."""
        if self._is_complete_prefix and self._handler is not None:
            self._handler.on_input_failed(self.tally.done, failure)
        self._add(b"", compute_s)

    def _add(self, response: bytes, compute_s: float, batch: int = 1) -> None:
        if not self._is_complete_prefix:
            return
        if self._responses and self._bytes + len(response) > self._max_bytes:
            self._report_progress()
        done = self.tally.done + 1
        if self._count > 1:
            compute_s = self.tally.compute_s + compute_s / batch
        self.tally = Tally(done, compute_s=compute_s, batch=batch)
        self._responses.append(response)
        self._bytes += len(response)
        if done < self._count and self._is_due():
            self._report_progress()

    def report_starved(self, *, idle: bool) -> None:
        """Report the results so far, because further inputs arrive only after them.

        While others run, the report waits for a few of them.
        """
        if self._responses and (
            idle or self._clock() - self._reported_at >= _STARVED_REPORT_INTERVAL_S
        ):
            self._report_progress()

    def end_prefix(self) -> None:
        """Discard responses from now on, because a query did not complete."""
        self._is_complete_prefix = False

    def set_progress(self, tally: Tally) -> None:
        """Set and report the counts of a range."""
        self.tally = tally
        self._report_progress()

    def set_final_tally(self, tally: Tally) -> None:
        """Set the final counts of a range, unless earlier ones are higher.

        The counts reported by a host are lost when it dies.
        """
        self.tally = max(self.tally, tally, key=lambda each: each.done)

    def end(self, failure: Failure | None) -> None:
        if self._handler is None:
            return
        if self.tally.done == self._count:
            self._handler.on_ended(_COMPLETED, self.tally, self._responses)
        elif failure is not None:
            self._handler.on_ended(Outcome.FAILED, self.tally, self._responses, *failure)
        else:
            self._handler.on_ended(Outcome.STOPPED, self.tally, self._responses)

    def _is_due(self) -> bool:
        late = self._clock() - self._reported_at >= REPORT_INTERVAL_S
        return late or self._bytes >= REPORT_BYTES

    def _report_progress(self) -> None:
        if self._handler is not None:
            self._handler.on_progress(self.tally, self._responses)
        self._responses, self._bytes, self._reported_at = [], 0, self._clock()
