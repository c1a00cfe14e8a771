"""Handle to watch, await and cancel a job, and to read its results."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synergai.client.channel import Patience, messages_of
from synergai.data.items import JobResult
from synergai.errors import Unavailable
from synergai.v1 import jobs_pb2
from synergai.wire.converters import job_status_from_proto

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import grpc

    from synergai.client.channel import GatewayChannel
    from synergai.domain import JobId
    from synergai.jobs import JobStatus


@dataclass(frozen=True, slots=True)
class ResultBatch:
    """Consecutive results, and the cursor where the results continue after them."""

    results: list[JobResult]
    cursor: int


async def read_batches(
    channel: GatewayChannel, job_id: str, *, cursor: int, follow: bool, patience: float
) -> AsyncGenerator[ResultBatch, None]:
    """Yield the results of a job from `cursor` on."""

    def call() -> grpc.aio.UnaryStreamCall[jobs_pb2.ResultsRequest, jobs_pb2.ResultBatch]:
        request = jobs_pb2.ResultsRequest(job_id=job_id, cursor=cursor, follow=follow)
        return channel.jobs.Results(request)

    messages = messages_of(channel, call, Patience(patience, channel.backoff))
    async with aclosing(messages):
        async for message in messages:
            cursor = message.cursor
            yield ResultBatch([_parse(each) for each in message.results], cursor)


def _parse(message: jobs_pb2.JobResult) -> JobResult:
    from synergai.oip import inference_pb2
    from synergai.wire.arrays import read_outputs

    if message.WhichOneof("outcome") != "response":
        return JobResult(message.index, message.name, {}, message.error or "it has no result")
    response = inference_pb2.ModelInferResponse.FromString(message.response)
    return JobResult(message.index, message.name, read_outputs(response))


class JobHandle:
    """Reference to a job at the gateway; created by ``Client.submit`` and ``Client.job``.

    Its calls raise `NotFound` if the gateway does not know the job, or no longer does.
    """

    def __init__(self, channel: GatewayChannel, job_id: JobId, *, patience: float) -> None:
        self.id = job_id
        self._channel = channel
        self._patience = patience

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    async def status(self) -> JobStatus:
        """Return the job's current status."""
        request = jobs_pb2.GetRequest(job_id=self.id)
        return job_status_from_proto(await self._channel.call(self._channel.jobs.Get, request))

    async def watch(self) -> AsyncGenerator[JobStatus, None]:
        """Yield the job's current status, then one after each change, until it has ended.

        Submitted jobs survive a restart of their gateway, and so does the watch: it reconnects
        while the gateway is unavailable, for up to the client's `patience`.
        """
        request = jobs_pb2.WatchRequest(job_id=self.id)
        messages = messages_of(
            self._channel,
            lambda: self._channel.jobs.Watch(request),
            Patience(self._patience, self._channel.backoff),
            lost=f"{self._channel.target} ended the watch of job {self.id}",
        )
        async with aclosing(messages):
            async for message in messages:
                status = job_status_from_proto(message)
                yield status
                if status.state.ended:
                    return

    async def wait(self) -> JobStatus:
        """Wait for the job to end, in any state, and return its final status.

        See ``JobStatus.raise_unless_succeeded``.
        """
        async with aclosing(self.watch()) as statuses:
            async for status in statuses:
                if status.state.ended:
                    return status
        raise Unavailable(f"the watch of job {self.id} ended before the job")

    async def results(self, *, follow: bool = True) -> AsyncGenerator[tuple[int, JobResult], None]:
        """Yield the results of a job over its own inputs, in the order in which they were stored.

        Inputs that failed are among them, with their `error`. Results can be read while the job
        runs, any number of times, until the gateway deletes them. Like `watch`, it reconnects.

        Yields:
            The position of the input, and its result.

        Raises:
            Cancelled, Overloaded, DeadlineExceeded: with `follow`, after the last result: the job
                was cancelled, was rejected or expired, so that results are missing.
            NotFound: the gateway does not know the job, or no longer has its results.
        """
        async with aclosing(self.result_batches(follow=follow)) as batches:
            async for batch in batches:
                for result in batch.results:
                    yield result.index, result
        if follow:
            (await self.status()).raise_unless_succeeded()

    def result_batches(
        self, *, cursor: int = 0, follow: bool = True
    ) -> AsyncGenerator[ResultBatch, None]:
        """Yield the results like `results`, as they arrive and with the cursor after each batch."""
        # Imported late: submitting and watching jobs needs no NumPy.

        return read_batches(
            self._channel, self.id, cursor=cursor, follow=follow, patience=self._patience
        )

    async def cancel(self) -> JobStatus:
        """Stop the job at its next query; completed queries are kept."""
        request = jobs_pb2.CancelRequest(job_id=self.id)
        return job_status_from_proto(await self._channel.call(self._channel.jobs.Cancel, request))
