"""Work of one registration: its stream, orders to work items, and outcomes to reports."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from synergai.domain import Configuration, EngineName, Fault, Outcome, Session
from synergai.errors import InvalidInput, TensorsLost
from synergai.runtime.tasks import TaskBag
from synergai.v1 import common_pb2
from synergai.wire import converters
from worker_agent.ipc import Tally
from worker_agent.work_item import AssignmentReporter, Failure, InputQueue, WorkItem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from synergai.v1 import hub_pb2
    from synergai.wire.request_codec import Buffer
    from synergai.wire.work_messages import Orders, Reports
    from synergai.wire.work_transport import SentOver, WorkTransport
    from worker_agent.exchange import HeldTensorStore, Pulls
    from worker_agent.runner import Runner

_log = logging.getLogger(__name__)


class WorkStream:
    """The work stream of one registration; reports before it is open are dropped."""

    _transport: WorkTransport | None = None

    @property
    def is_open(self) -> bool:
        """Whether orders can arrive."""
        return self._transport is not None and not self._transport.closed.done()

    def send(self, reports: Reports) -> None:
        if self._transport is not None:
            self._transport.send_message(reports)

    async def serve(self, opening: Awaitable[WorkTransport]) -> None:
        """Open the stream, and wait until it has closed."""
        self._transport = await opening
        await asyncio.shield(self._transport.closed)

    def measure_link(self) -> SentOver | None:
        """Return how fast the link was lately, if that is known."""
        return None if self._transport is None else self._transport.measure_link()

    @property
    def received_bytes_per_s(self) -> float:
        """Rate at which large messages arrive; 0 if unknown."""
        return 0.0 if self._transport is None else self._transport.received_bytes_per_s

    async def flush(self) -> None:
        if self._transport is not None:
            self._transport.finish()
            await asyncio.wait([self._transport.closed])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Assignments:
    """Outstanding assignments of one registration."""

    def __init__(
        self,
        runner: Runner,
        send: Callable[[Reports], None],
        configurations: Sequence[Configuration],
        held: HeldTensorStore,
        pulls: Pulls,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._send = send
        self._configurations = configurations
        self._clock = clock
        self._held = held
        self._pulls = pulls
        self._items: dict[int, WorkItem] = {}
        # Of single requests whose tensors have not arrived, so that the runner does not have them.
        self._pulling: dict[int, asyncio.Task[bytes | Failure]] = {}
        self._tasks = TaskBag()

    def handle_orders(self, orders: Orders) -> None:
        """Start and stop assignments as ordered by the gateway."""
        for assignment, requests in orders.assignments:
            self._assign(assignment, requests)
        for message, inputs in orders.inputs:
            work = self._items.get(message.assignment_id)
            if work is not None and work.inputs is not None:
                pulls = {each.query: each for each in message.pulls}
                work.inputs.receive(inputs, message.suspects, pulls)
        for assignment_id in orders.stops:
            self._stop(assignment_id)
        for assignment_id in orders.aborts:
            self._stop(assignment_id, abort=True)
        for pull in orders.probes:
            if pull.address:
                self._tasks.start(self._pulls.pull_directly(pull))
            else:
                self._held.hold_zeros(self, pull.token)
        if orders.sends:
            self._pulls.send(orders.sends)
        for tensors in orders.relayed:
            self._pulls.receive(tensors)
        for token in orders.drops:
            self._held.drop(token)

    def abandon_all(self) -> None:
        """Stop all assignments without reporting; the gateway has reassigned them."""
        # Abandoning an assignment may end others behind it, which removes them from the dictionary.
        for assignment_id, work in list(self._items.items()):
            if assignment_id not in self._pulling:
                self._runner.abandon(work)
            if work.inputs is not None:
                work.inputs.close()
        self._items.clear()
        self._tasks.cancel()
        self._held.drop_all(self)

    def _stop(self, assignment_id: int, *, abort: bool = False) -> None:
        if (pulling := self._pulling.get(assignment_id)) is not None:
            pulling.cancel()
        elif (work := self._items.get(assignment_id)) is not None:
            self._runner.stop(work, abort=abort)

    def _assign(self, assignment: hub_pb2.Assignment, requests: Sequence[Buffer]) -> None:
        hold = partial(self._held.hold, self) if assignment.holds_outputs else None
        reporter = AssignmentReporter(assignment.id, self._send, self._remove, hold)
        try:
            work = _work_item(assignment, requests, reporter, self._clock())
        except InvalidInput as error:
            reporter.on_ended(Outcome.FAILED, Tally(), (), Fault.BAD_INPUT, str(error))
            return
        configuration = work.session.configuration
        base = configuration.base if configuration.variant else configuration
        if base not in self._configurations:
            available = "; ".join(map(str, self._configurations))
            detail = (
                f"configuration {configuration} is not available on this worker, which has: "
                f"{available}"
            )
            fault = Fault.CONFIGURATION_UNUSABLE
            reporter.on_ended(Outcome.FAILED, Tally(), (), fault, detail)
            return
        if assignment.inputs_follow:
            work.inputs = InputQueue(self._pull, self._runner.resume, work.count)
        self._items[assignment.id] = work
        if assignment.HasField("pull"):
            pulling = self._tasks.start(self._pull(assignment.pull, requests[0]))
            self._pulling[assignment.id] = pulling
            pulling.add_done_callback(partial(self._on_pulled, assignment.id, work, reporter))
        else:
            self._runner.add(work)

    async def _pull(self, pull: hub_pb2.Pull, request: Buffer) -> bytes | Failure:
        """Return a request with its tensors, or that they are lost."""
        try:
            return await self._pulls.pull(pull, request)
        except TensorsLost as error:
            return Failure(Fault.TENSORS_LOST, str(error))
        except Exception:  # noqa: BLE001 - a query without an outcome would never end
            _log.exception("pulling tensors from worker %r failed", pull.worker_id)
            detail = "the tensors of a stage cannot be pulled; see the worker's log"
            return Failure(Fault.TENSORS_LOST, detail)

    def _on_pulled(
        self,
        assignment_id: int,
        work: WorkItem,
        reporter: AssignmentReporter,
        pulling: asyncio.Task[bytes | Failure],
    ) -> None:
        """Run a request whose tensors have arrived."""
        del self._pulling[assignment_id]
        if pulling.cancelled():
            reporter.on_ended(Outcome.STOPPED, Tally(), ())
            return
        found = pulling.result()
        if isinstance(found, Failure):
            reporter.on_ended(Outcome.FAILED, Tally(), (), *found)
        else:
            work.requests = (found,)
            self._runner.add(work)

    def _remove(self, assignment_id: int) -> None:
        work = self._items.pop(assignment_id, None)
        if work is not None and work.inputs is not None:
            work.inputs.close()


@lru_cache(maxsize=1024)
def _configuration(message: bytes) -> Configuration:
    """Return the configuration that a message says, which most assignments share."""
    return converters.configuration_from_proto(common_pb2.Configuration.FromString(message))


def _work_item(
    assignment: hub_pb2.Assignment,
    requests: Sequence[Buffer],
    handler: AssignmentReporter,
    now: float,
) -> WorkItem:
    if not assignment.count or len(requests) not in (0, assignment.count):
        raise InvalidInput(
            f"an assignment of {assignment.count} queries came with {len(requests)} requests"
        )
    configuration = _configuration(assignment.configuration.SerializeToString())
    batch_s = assignment.batch_s
    return WorkItem(
        session=Session(EngineName(assignment.engine), configuration),
        handler=handler,
        requests=requests,
        first=assignment.first,
        count=assignment.count,
        job=assignment.job_id,
        batch_times=converters.batch_times_from_proto(batch_s) if batch_s else None,
        due=now + assignment.budget_s if assignment.HasField("budget_s") else math.inf,
        concurrent=assignment.concurrent and assignment.count == 1 and bool(requests),
    )
