"""Job status, and a handle to watch, await and cancel a job."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

import grpc

from synergai.domain import Configuration, EngineName, JobId, JobSpec, JobState, WorkerId
from synergai.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidInput,
    Overloaded,
    SynergaiError,
    Unavailable,
)
from synergai.protocol.converters import configuration_from_proto
from synergai.runtime.backoff import Backoff
from synergai.v1 import jobs_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import datetime

    from google.protobuf.timestamp_pb2 import Timestamp

    from synergai.client.channel import GatewayChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Queries [first, first + count) of a job, run by one worker in `seconds`."""

    worker_id: WorkerId
    configuration: Configuration
    first: int
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Snapshot of a job.

    Attributes:
        submitted_at: when the gateway accepted it, in UTC.
        finished_at: when it ended, in UTC; None before that.
        waited_s: seconds from acceptance to the first dispatch.
        estimated_s: seconds from the first dispatch to completion, as estimated then.
        actual_s: seconds from the first dispatch to completion.
        violated: it missed its QoS or can no longer meet it.
        excess_s: seconds past its QoS.
        labelled: number of completed queries with a known label.
        correct: number of these that were answered correctly.
        reason: why it failed, was rejected or expired.
    """

    id: JobId
    spec: JobSpec
    state: JobState
    submitted_at: datetime
    finished_at: datetime | None = None
    queries_done: int = 0
    waited_s: float = 0.0
    estimated_s: float | None = None
    actual_s: float | None = None
    violated: bool = False
    excess_s: float = 0.0
    executions: tuple[Execution, ...] = ()
    labelled: int = 0
    correct: int = 0
    reason: str = ""

    @property
    def accuracy(self) -> float | None:
        """Fraction of correct answers, 0 to 1; None without labels."""
        return self.correct / self.labelled if self.labelled else None

    def raise_unless_succeeded(self) -> None:
        """Raise the error for a job that ended without success.

        Raises:
            Cancelled: it was cancelled.
            Overloaded: it was rejected.
            DeadlineExceeded: it expired.
            SynergaiError: it failed.
        """
        if error := _ERRORS.get(self.state):
            state = self.state.name.lower()
            raise error(f"job {self.id} {state}" + (f": {self.reason}" if self.reason else ""))


_ERRORS: dict[JobState, type[SynergaiError]] = {
    JobState.FAILED: SynergaiError,
    JobState.CANCELLED: Cancelled,
    JobState.REJECTED: Overloaded,
    JobState.EXPIRED: DeadlineExceeded,
}


def spec_to_proto(spec: JobSpec) -> jobs_pb2.JobSpec:
    """Convert `spec` to its message; an infinite QoS is left out."""
    return jobs_pb2.JobSpec(
        engine=spec.engine,
        queries=spec.queries,
        qos_s=None if math.isinf(spec.qos) else spec.qos,
        priority=spec.priority,
        tenant=spec.tenant,
    )


def status_from_proto(job: jobs_pb2.Job) -> JobStatus:
    """Convert a job from its message.

    Raises:
        InvalidInput: a field is not valid.
    """
    spec = job.spec
    return JobStatus(
        id=JobId(job.id),
        spec=JobSpec(
            engine=EngineName(spec.engine),
            queries=spec.queries,
            qos=spec.qos_s if spec.HasField("qos_s") else math.inf,
            priority=spec.priority,
            tenant=spec.tenant,
        ),
        state=_state_from_proto(job.state),
        submitted_at=_to_datetime(job.submitted_at),
        finished_at=_to_datetime(job.finished_at) if job.HasField("finished_at") else None,
        queries_done=job.queries_done,
        waited_s=job.waited_s,
        estimated_s=job.estimated_s if job.HasField("estimated_s") else None,
        actual_s=job.actual_s if job.HasField("actual_s") else None,
        violated=job.violated,
        excess_s=job.excess_s,
        executions=tuple(map(_execution_from_proto, job.executions)),
        labelled=job.labelled,
        correct=job.correct,
        reason=job.reason,
    )


def _state_from_proto(number: int) -> JobState:
    try:
        return JobState(number)
    except ValueError:
        raise InvalidInput(f"the server sent the unknown job state {number}") from None


def _to_datetime(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)


def _execution_from_proto(message: jobs_pb2.Execution) -> Execution:
    return Execution(
        worker_id=WorkerId(message.worker_id),
        configuration=configuration_from_proto(message.configuration),
        first=message.first,
        count=message.count,
        seconds=message.seconds,
    )


class JobHandle:
    """Reference to a job at the gateway; created by ``Client.submit`` and ``Client.job``."""

    def __init__(
        self, channel: GatewayChannel, job_id: JobId, *, call_timeout: float, patience: float
    ) -> None:
        self.id = job_id
        self._channel = channel
        self._call_timeout = call_timeout
        self._patience = patience

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    async def status(self) -> JobStatus:
        """Return the job's current status.

        Raises:
            NotFound: the gateway does not know the job, or no longer does.
            SynergaiError: the call failed.
        """
        return status_from_proto(
            await self._channel.call(
                self._channel.jobs.Get,
                jobs_pb2.GetRequest(job_id=self.id),
                timeout=self._call_timeout,
            )
        )

    async def watch(self) -> AsyncGenerator[JobStatus, None]:
        """Yield the job's current status, then one after each change, until it has ended.

        Submitted jobs survive a restart of their gateway, and so does the watch: it reconnects
        while the gateway is unavailable, for up to the client's `patience`.

        Yields:
            The job's status; the last one has ended.

        Raises:
            NotFound: the gateway does not know the job.
            Unavailable: the gateway was unavailable for longer than `patience`.
            SynergaiError: the call failed.
        """
        delays = Backoff().delays()
        unavailable_since: float | None = None
        while True:
            call = self._channel.jobs.Watch(jobs_pb2.WatchRequest(job_id=self.id))
            lost = Unavailable(f"{self._channel.target} ended the watch of job {self.id}")
            try:
                async for message in call:
                    unavailable_since, delays = None, Backoff().delays()
                    status = status_from_proto(message)
                    yield status
                    if status.state.ended:
                        return
            except grpc.aio.AioRpcError as failure:
                error = self._channel.to_error(failure)
                if not isinstance(error, Unavailable):
                    raise error from None
                lost = error
            except asyncio.CancelledError as cancellation:
                raise self._channel.cancellation_cause(cancellation) from None
            finally:
                call.cancel()
            now = time.monotonic()
            unavailable_since = now if unavailable_since is None else unavailable_since
            delay = next(delays)
            if now + delay - unavailable_since > self._patience:
                raise lost
            await asyncio.sleep(delay)

    async def wait(self) -> JobStatus:
        """Wait for the job to end, in any state, and return its final status.

        See ``JobStatus.raise_unless_succeeded``.

        Raises:
            SynergaiError: see `watch`.
        """
        statuses = self.watch()
        try:
            async for status in statuses:
                if status.state.ended:
                    return status
        finally:
            await statuses.aclose()
        raise Unavailable(f"the watch of job {self.id} ended before the job")

    async def cancel(self) -> JobStatus:
        """Stop the job at its next query; completed queries are kept.

        Raises:
            NotFound: the gateway does not know the job.
            SynergaiError: the call failed.
        """
        return status_from_proto(
            await self._channel.call(
                self._channel.jobs.Cancel,
                jobs_pb2.CancelRequest(job_id=self.id),
                timeout=self._call_timeout,
            )
        )
