"""``synergai.v1.Jobs``: jobs of many queries with a QoS time."""

from __future__ import annotations

import math
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import grpc

from gateway.jobs.executions import merge_adjacent
from gateway.jobs.streamed import Query, Result
from synergai.domain import EngineName, JobSpec, JobState
from synergai.errors import InvalidInput
from synergai.protocol import rpc
from synergai.protocol.converters import configuration_to_proto
from synergai.v1 import jobs_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from gateway.jobs.executions import Execution
    from gateway.jobs.status import JobStatus
    from gateway.jobs.streamed import StreamedJobs
    from gateway.jobs.submitted import SubmittedJobs
    from synergai.protocol.rpc import Context

DEFAULT_LISTED: Final = 100


class JobsServicer:
    """Serves ``synergai.v1.Jobs``."""

    def __init__(self, jobs: SubmittedJobs, streamed: StreamedJobs) -> None:
        self._jobs = jobs
        self._streamed = streamed

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to add to a server."""
        return grpc.method_handlers_generic_handler(
            "synergai.v1.Jobs",
            {
                "Submit": rpc.unary(self.submit, jobs_pb2.SubmitRequest),
                "Watch": rpc.server_stream(self.watch, jobs_pb2.WatchRequest),
                "Get": rpc.unary(self.get, jobs_pb2.GetRequest),
                "List": rpc.unary(self.list, jobs_pb2.ListRequest),
                "Cancel": rpc.unary(self.cancel, jobs_pb2.CancelRequest),
                "Run": rpc.stream(self.run, jobs_pb2.RunRequest),
            },
        )

    async def submit(self, request: jobs_pb2.SubmitRequest, _context: Context) -> jobs_pb2.Job:
        """Accept a job and write it to the journal."""
        spec = spec_from_proto(request.spec)
        return job_to_proto(await self._jobs.submit(spec, request.idempotency_key))

    async def watch(
        self, request: jobs_pb2.WatchRequest, _context: Context
    ) -> AsyncGenerator[jobs_pb2.Job, None]:
        """Yield a job's status, and again at every change."""
        async with aclosing(self._jobs.watch(request.job_id)) as statuses:
            async for status in statuses:
                yield job_to_proto(status)

    async def get(self, request: jobs_pb2.GetRequest, _context: Context) -> jobs_pb2.Job:
        """Return a job's current status."""
        return job_to_proto(await self._jobs.get(request.job_id))

    async def list(self, request: jobs_pb2.ListRequest, _context: Context) -> jobs_pb2.ListResponse:
        """Return the newest jobs, of given states if any are named."""
        states = [_STATES[state] for state in request.states if state in _STATES]
        if len(states) != len(request.states):
            raise InvalidInput(f"states must be from 1 to {len(JobState)}")
        found = await self._jobs.list(states, request.limit or DEFAULT_LISTED)
        return jobs_pb2.ListResponse(jobs=map(job_to_proto, found))

    async def cancel(self, request: jobs_pb2.CancelRequest, _context: Context) -> jobs_pb2.Job:
        """Cancel a job at its next query boundary."""
        return job_to_proto(await self._jobs.cancel(request.job_id))

    async def run(
        self, requests: AsyncIterator[jobs_pb2.RunRequest], context: Context
    ) -> AsyncGenerator[jobs_pb2.RunResponse, None]:
        """Run a job whose queries are streamed by the client."""
        budget_s = context.time_remaining()
        opening = await anext(requests, None)
        if opening is None or opening.WhichOneof("message") != "open":
            raise InvalidInput("the first message must be `open`")
        spec = spec_from_proto(opening.open)
        async with aclosing(self._streamed.run(spec, budget_s, _queries(requests))) as answers:
            async for answer in answers:
                match answer:
                    case Result(index, response):
                        result = jobs_pb2.Result(index=index, response=response)
                        yield jobs_pb2.RunResponse(result=result)
                    case status:
                        yield jobs_pb2.RunResponse(job=job_to_proto(status))


async def _queries(requests: AsyncIterator[jobs_pb2.RunRequest]) -> AsyncGenerator[Query, None]:
    async for request in requests:
        if request.WhichOneof("message") != "query":
            raise InvalidInput("every message after the first must be a `query`")
        yield Query(request.query.index, request.query.request)


def spec_from_proto(message: jobs_pb2.JobSpec) -> JobSpec:
    """Convert a client's job specification.

    Raises:
        InvalidInput: a field is out of range.
    """
    return JobSpec(
        engine=EngineName(message.engine),
        queries=message.queries,
        qos=message.qos_s if message.HasField("qos_s") else math.inf,
        priority=message.priority,
        tenant=message.tenant,
    )


def spec_to_proto(spec: JobSpec) -> jobs_pb2.JobSpec:
    """Convert a job specification to its message."""
    return jobs_pb2.JobSpec(
        engine=spec.engine,
        queries=spec.queries,
        qos_s=None if math.isinf(spec.qos) else spec.qos,
        priority=spec.priority,
        tenant=spec.tenant,
    )


def job_to_proto(status: JobStatus) -> jobs_pb2.Job:
    """Convert a job's status to its message."""
    message = jobs_pb2.Job(
        id=status.id,
        spec=spec_to_proto(status.spec),
        state=_STATE_NUMBERS[status.state],
        queries_done=status.queries_done,
        waited_s=status.waited_s,
        estimated_s=status.estimated_s,
        actual_s=status.actual_s,
        violated=status.violated,
        excess_s=status.excess_s,
        executions=map(_execution_to_proto, merge_adjacent(status.executions)),
        labelled=status.labelled,
        correct=status.correct,
        reason=status.reason,
    )
    message.submitted_at.FromNanoseconds(int(status.submitted_at * 1e9))
    if status.finished_at is not None:
        message.finished_at.FromNanoseconds(int(status.finished_at * 1e9))
    return message


def _execution_to_proto(execution: Execution) -> jobs_pb2.Execution:
    return jobs_pb2.Execution(
        worker_id=execution.worker_id,
        configuration=configuration_to_proto(execution.configuration),
        first=execution.first,
        count=execution.count,
        seconds=execution.seconds,
    )


_STATES: Final = {state.value: state for state in JobState}
_STATE_NUMBERS: Final = {
    state: jobs_pb2.JobState.Value(f"JOB_STATE_{state.name}") for state in JobState
}
