"""Results of a job over its own inputs."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synergai.client.reconnecting import Patience, messages_of
from synergai.data.results import JobResult
from synergai.v1 import jobs_pb2
from synergai.wire.arrays import read_outputs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import grpc

    from synergai.client.channel import GatewayChannel


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

    if message.WhichOneof("outcome") != "response":
        return JobResult(message.index, message.name, {}, message.error or "it has no result")
    response = inference_pb2.ModelInferResponse.FromString(message.response)
    return JobResult(message.index, message.name, read_outputs(response))
