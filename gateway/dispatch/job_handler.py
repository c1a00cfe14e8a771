"""Interface between the dispatcher and the owners of jobs."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Protocol

from synergai.domain import REMOVED, Fault, Job
from synergai.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineUnusable,
    InternalError,
    InvalidInput,
    MessageTooLarge,
    OutOfMemory,
    Overloaded,
    SynergaiError,
    TensorsLost,
    Unavailable,
)
from synergai.jobs import JobState
from synergai.wire.status import WORKERS_FAILED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.fleet.worker import AssignmentProgress, ConnectedWorker
    from synergai.core.pipeline import HeldTensors
    from synergai.core.scheduling.events import Assignment
    from synergai.wire.request_codec import Buffer

_log = logging.getLogger(__name__)


class JobHandler(Protocol):
    """Owner of a job, called by the dispatcher on the event loop's thread.

    Results of a durable one count only once the journal has recorded them. If inputs follow, the
    handler sends them itself. Nothing waits for the end of one that is answered. Workers hold the
    outputs of a stage for the next one, and pull the tensors of a request that has none. A single
    request is in `data`.
    """

    __slots__ = ()
    durable: bool = False
    with_tensors: bool = True
    inputs_follow: bool = False
    answered: bool = False
    holds_outputs: bool = False
    pull: HeldTensors | None = None
    data: Buffer | None = None

    def on_dispatched(self, worker: ConnectedWorker, assignment: Assignment, now: float, /) -> None:
        """Handle the dispatch of some of the job's queries."""

    def retries_alone(self, _query: int, /) -> bool:
        """Return whether the job runs a query alone next, at or after which an engine host died."""
        return False

    def on_progress(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        responses: Sequence[Buffer],
        now: float,
        /,
    ) -> None:
        """Handle newly completed queries, and their serialised responses, if they carry tensors."""

    def on_ended(self, state: JobState, reason: str, fault: Fault, now: float, /) -> None:
        """Handle the end of the job, with a reason for users; the last call."""


def job_error(job: Job, state: JobState, reason: str, fault: Fault) -> SynergaiError:
    error = _error(job, state, reason, fault)
    error.request_id = job.id
    return error


def _error(job: Job, state: JobState, reason: str, fault: Fault) -> SynergaiError:
    engine = job.engine
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
    if fault is Fault.RESPONSE_TOO_LARGE:
        return MessageTooLarge(reason)
    if fault is Fault.TENSORS_LOST:
        return TensorsLost(reason)
    if reason == REMOVED:  # others may have it, or another version
        return Unavailable(f"engine {engine!r} was removed from its workers while it ran")
    fault_id = secrets.token_hex(4)
    _log.error(
        "fault %s: request %s, engine %s: %s: %s", fault_id, job.id, engine, fault.name, reason
    )
    see = f"fault {fault_id}; the gateway's log has the detail"
    match fault:
        case Fault.ENGINE_BROKEN | Fault.CONFIGURATION_UNUSABLE:
            return EngineUnusable(f"engine {engine!r} failed on its workers: {see}")
        case Fault.OUT_OF_MEMORY:
            return OutOfMemory(f"the workers lack memory for engine {engine!r}: {see}")
        case Fault.HOST_DIED | Fault.CRASHED | Fault.UNKNOWN_ENGINE:
            return Unavailable(f"{WORKERS_FAILED} engine {engine!r} failed: {see}")
        case _:
            return InternalError(f"engine {engine!r} failed: {see}")
