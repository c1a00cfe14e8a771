"""Jobs as a client sees them: their status, and a handle to watch, await and cancel one."""

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

    from synergai.client.channel import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Queries [first, first + count) of a job as one worker ran them, in `seconds`."""

    worker_id: WorkerId
    configuration: Configuration
    first: int
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job at one moment.

    Attributes:
        submitted_at: when the gateway accepted it, in UTC.
        finished_at: when it ended, in UTC; None before that.
        waited_s: from acceptance to the first dispatch.
        estimated_s: from dispatch to completion, estimated at the first dispatch.
        actual_s: from the first dispatch to completion.
        violated: it missed its QoS, or cannot make it any more.
        excess_s: by how much it missed it.
        labelled: queries with a known label.
        correct: of these, answered right.
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
        """Share of right answers, 0 to 1; None where nothing is labelled."""
        return self.correct / self.labelled if self.labelled else None

    def raise_unless_succeeded(self) -> None:
        """Turn an ending other than success into the error that says why.

        Raises:
            Cancelled: it was cancelled.
            Overloaded: it was rejected.
            DeadlineExceeded: it expired.
            SynergaiError: it failed.
        """
        if error := _ENDINGS.get(self.state):
            state = self.state.name.lower()
            raise error(f"job {self.id} {state}" + (f": {self.reason}" if self.reason else ""))


_ENDINGS: dict[JobState, type[SynergaiError]] = {
    JobState.FAILED: SynergaiError,
    JobState.CANCELLED: Cancelled,
    JobState.REJECTED: Overloaded,
    JobState.EXPIRED: DeadlineExceeded,
}


def spec_to_proto(spec: JobSpec) -> jobs_pb2.JobSpec:
    """The message for `spec`; no QoS is said by leaving it out."""
    return jobs_pb2.JobSpec(
        engine=spec.engine,
        queries=spec.queries,
        qos_s=None if math.isinf(spec.qos) else spec.qos,
        priority=spec.priority,
        tenant=spec.tenant,
    )


def status_from_proto(job: jobs_pb2.Job) -> JobStatus:
    """The status in `job`.

    Raises:
        InvalidInput: the server sent a job that cannot be.
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
        state=_state(job.state),
        submitted_at=_instant(job.submitted_at),
        finished_at=_instant(job.finished_at) if job.HasField("finished_at") else None,
        queries_done=job.queries_done,
        waited_s=job.waited_s,
        estimated_s=job.estimated_s if job.HasField("estimated_s") else None,
        actual_s=job.actual_s if job.HasField("actual_s") else None,
        violated=job.violated,
        excess_s=job.excess_s,
        executions=tuple(map(_execution, job.executions)),
        labelled=job.labelled,
        correct=job.correct,
        reason=job.reason,
    )


def _state(number: int) -> JobState:
    try:
        return JobState(number)
    except ValueError:
        raise InvalidInput(f"the server says the unknown job state {number}") from None


def _instant(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)


def _execution(message: jobs_pb2.Execution) -> Execution:
    return Execution(
        worker_id=WorkerId(message.worker_id),
        configuration=configuration_from_proto(message.configuration),
        first=message.first,
        count=message.count,
        seconds=message.seconds,
    )


class JobHandle:
    """A job at the gateway, by its id. Made by ``Client.submit`` and ``Client.job``."""

    def __init__(
        self, connection: Connection, job_id: JobId, *, call_timeout: float, patience: float
    ) -> None:
        self.id = job_id
        self._connection = connection
        self._call_timeout = call_timeout
        self._patience = patience

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    async def status(self) -> JobStatus:
        """The job as it is now.

        Raises:
            NotFound: the gateway does not know it, or not any more.
            SynergaiError: the gateway could not be asked.
        """
        return status_from_proto(
            await self._connection.call(
                self._connection.jobs.Get,
                jobs_pb2.GetRequest(job_id=self.id),
                timeout=self._call_timeout,
            )
        )

    async def watch(self) -> AsyncGenerator[JobStatus, None]:
        """The job as it is now, then at every change, until it has ended.

        A submitted job survives its gateway, and so does watching it: while the gateway is away
        it is tried again, for as long as the client's patience lasts.

        Raises:
            NotFound: the gateway does not know the job.
            Unavailable: the gateway stayed away.
            SynergaiError: it refused.
        """
        delays = Backoff().delays()
        away_since: float | None = None
        while True:
            call = self._connection.jobs.Watch(jobs_pb2.WatchRequest(job_id=self.id))
            lost = Unavailable(f"{self._connection.target} ended the watch of job {self.id}")
            try:
                async for message in call:
                    away_since, delays = None, Backoff().delays()
                    status = status_from_proto(message)
                    yield status
                    if status.state.ended:
                        return
            except grpc.aio.AioRpcError as failure:
                error = self._connection.error_of(failure)
                if not isinstance(error, Unavailable):
                    raise error from None
                lost = error
            except asyncio.CancelledError as cancellation:
                raise self._connection.reason_of(cancellation) from None
            finally:
                call.cancel()
            now = time.monotonic()
            away_since = now if away_since is None else away_since
            pause = next(delays)
            if now + pause - away_since > self._patience:
                raise lost
            await asyncio.sleep(pause)

    async def wait(self) -> JobStatus:
        """The job once it has ended, however it did; see ``JobStatus.raise_unless_succeeded``.

        Raises:
            SynergaiError: as `watch`.
        """
        watching = self.watch()
        try:
            async for status in watching:
                if status.state.ended:
                    return status
        finally:
            await watching.aclose()
        raise Unavailable(f"job {self.id} was not watched to its end")

    async def cancel(self) -> JobStatus:
        """Stop the job at its next query; what is done stays done.

        Raises:
            NotFound: the gateway does not know it.
            SynergaiError: the gateway could not be asked.
        """
        return status_from_proto(
            await self._connection.call(
                self._connection.jobs.Cancel,
                jobs_pb2.CancelRequest(job_id=self.id),
                timeout=self._call_timeout,
            )
        )
