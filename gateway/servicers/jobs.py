"""``synergai.v1.Jobs``: jobs of many queries with a QoS time."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import grpc

from gateway.access.caller import current_caller
from gateway.jobs.streamed import Query, Result
from synergai.domain import JobState
from synergai.errors import InvalidInput, NotSupported
from synergai.protocol import rpc
from synergai.protocol.converters import job_spec_from_proto, job_status_to_proto
from synergai.v1 import jobs_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from gateway.jobs.streamed import StreamedJobs
    from gateway.jobs.submitted import SubmittedJobs
    from synergai.protocol.rpc import Context

DEFAULT_LISTED: Final = 100


class JobsServicer:
    """Serves ``synergai.v1.Jobs``."""

    def __init__(self, jobs: SubmittedJobs, streamed: StreamedJobs) -> None:
        self._jobs = jobs
        self._streamed = streamed
        self._calls = rpc.SlowCalls()

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
                "Upload": rpc.stream(self.upload, jobs_pb2.UploadRequest),
                "Results": rpc.server_stream(self.results, jobs_pb2.ResultsRequest),
            },
        )

    async def submit(self, request: jobs_pb2.SubmitRequest, _context: Context) -> jobs_pb2.Job:
        """Accept a job and write it to the journal."""
        spec = job_spec_from_proto(request.spec)
        if spec.upload_id:
            _refuse_own_inputs()
        key = request.idempotency_key
        return job_status_to_proto(await self._jobs.submit(current_caller(), spec, key))

    async def watch(
        self, request: jobs_pb2.WatchRequest, _context: Context
    ) -> AsyncGenerator[jobs_pb2.Job, None]:
        """Yield a job's status, and again at every change."""
        async with aclosing(self._jobs.watch(current_caller(), request.job_id)) as statuses:
            async for status in statuses:
                yield job_status_to_proto(status)

    async def get(self, request: jobs_pb2.GetRequest, _context: Context) -> jobs_pb2.Job:
        """Return a job's current status."""
        return job_status_to_proto(await self._jobs.get(current_caller(), request.job_id))

    async def list(self, request: jobs_pb2.ListRequest, _context: Context) -> jobs_pb2.ListResponse:
        """Return the newest jobs, of given states if any are named."""
        try:
            states = [JobState(state) for state in request.states]
        except ValueError:
            raise InvalidInput(f"states must be from 1 to {len(JobState)}") from None
        limit = request.limit or DEFAULT_LISTED
        found = await self._jobs.list(current_caller(), states, limit)
        return jobs_pb2.ListResponse(jobs=map(job_status_to_proto, found))

    async def cancel(self, request: jobs_pb2.CancelRequest, _context: Context) -> jobs_pb2.Job:
        """Cancel a job at its next query boundary."""
        return job_status_to_proto(await self._jobs.cancel(current_caller(), request.job_id))

    async def run(
        self, requests: AsyncIterator[jobs_pb2.RunRequest], context: Context
    ) -> AsyncGenerator[jobs_pb2.RunResponse, None]:
        """Run a job whose queries are streamed by the client."""
        budget_s = context.time_remaining()
        opening = await anext(requests, None)
        if opening is None or opening.WhichOneof("message") != "open":
            raise InvalidInput("the first message must be `open`")
        spec = job_spec_from_proto(opening.open)
        if spec.upload_id:
            raise InvalidInput("submit a job over an upload; a streamed one brings its own queries")
        end = await self._calls.ending(context)
        answers = self._streamed.run(current_caller(), spec, budget_s, _queries(requests), end)
        async with aclosing(answers) as responses:
            async for item in responses:
                match item:
                    case Result(index, response):
                        result = jobs_pb2.Result(index=index, response=response)
                        yield jobs_pb2.RunResponse(result=result)
                    case status:
                        yield jobs_pb2.RunResponse(job=job_status_to_proto(status))

    async def upload(
        self, _requests: AsyncIterator[jobs_pb2.UploadRequest], _context: Context
    ) -> AsyncGenerator[jobs_pb2.UploadReceipt, None]:
        """Store the inputs of a job."""
        _refuse_own_inputs()
        yield jobs_pb2.UploadReceipt()

    async def results(
        self, _request: jobs_pb2.ResultsRequest, _context: Context
    ) -> AsyncGenerator[jobs_pb2.ResultBatch, None]:
        """Yield the results of a job over its own inputs."""
        _refuse_own_inputs()
        yield jobs_pb2.ResultBatch()


def _refuse_own_inputs() -> None:
    raise NotSupported("this gateway does not serve jobs over their clients' own inputs yet")


async def _queries(requests: AsyncIterator[jobs_pb2.RunRequest]) -> AsyncGenerator[Query, None]:
    async for request in requests:
        if request.WhichOneof("message") != "query":
            raise InvalidInput("every message after the first must be a `query`")
        yield Query(request.query.index, request.query.request)
