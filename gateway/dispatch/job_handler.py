"""The seam between the dispatcher and whatever wants queries to be run."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Protocol

from synergai.domain import Fault, JobState
from synergai.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineUnusable,
    InternalFault,
    InvalidInput,
    Overloaded,
    SynergaiError,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.fleet.worker import ConnectedWorker, Outstanding
    from synergai.domain import EngineName
    from synergai.protocol.request_codec import Buffer
    from synergai.scheduling.events import Assignment

_log = logging.getLogger(__name__)


class Work(Protocol):
    """A job from the side of whoever wants its results. All calls come on the loop's thread.

    Attributes:
        durable: its results have to be in the journal before they count.
        with_tensors: its queries come with their tensors, and its results are wanted.
    """

    durable: bool
    with_tensors: bool

    def requests(self, first: int, count: int, /) -> Sequence[bytes]:
        """The serialised requests of these queries; none if they are drawn from samples."""

    def dispatched(self, assignment: Assignment, now: float, /) -> None:
        """Some of the queries were given to a worker."""

    def recorded(
        self,
        worker: ConnectedWorker,
        outstanding: Outstanding,
        responses: Sequence[Buffer],
        now: float,
        /,
    ) -> None:
        """A worker is further with an assignment.

        Args:
            worker: who ran it.
            outstanding: the assignment with its figures, this report's included.
            responses: the results of the newly done queries, serialised, if it has tensors.
            now: when the report came.
        """

    def ended(self, state: JobState, reason: str, fault: Fault, now: float, /) -> None:
        """Nothing more will happen to the job.

        Args:
            state: one of those that are ends.
            reason: why, for people; empty if all is well.
            fault: of what kind the failure was.
            now: when.
        """


def failure(engine: EngineName, state: JobState, reason: str, fault: Fault) -> SynergaiError:
    """What a client on the line is told when its work did not succeed."""
    match state:
        case JobState.EXPIRED:
            return DeadlineExceeded("the deadline passed before the work was done")
        case JobState.REJECTED:
            return Overloaded(reason)
        case JobState.CANCELLED:
            return Cancelled("the work was cancelled")
        case _:
            pass
    if fault is Fault.BAD_INPUT:
        return InvalidInput(reason)
    fault_id = secrets.token_hex(4)
    _log.error("fault %s: engine %s: %s: %s", fault_id, engine, fault.name, reason)
    see = f"fault {fault_id}; the gateway's log has the detail"
    match fault:
        case Fault.ENGINE_BROKEN:
            return EngineUnusable(f"engine {engine!r} failed on its workers: {see}")
        case Fault.HOST_DIED | Fault.UNKNOWN_ENGINE:
            return Unavailable(f"the workers that ran engine {engine!r} failed: {see}")
        case _:
            return InternalFault(f"engine {engine!r} failed: {see}")
